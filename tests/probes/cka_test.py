import numpy as np
import pytest

from tests.messages import refused
from vit_jax.probes import cka

ROUNDING = 1e-5


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def unbiased_hsic(x, y):
    """Equation 3 of arXiv 2010.15327, literally."""
    n, one = len(x), np.ones(len(x))
    k, m = x @ x.T, y @ y.T
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    trace = np.trace(k @ m)
    sums = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (trace + sums - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def by_hand(batches_x, batches_y):
    """Equation 2: the mean over batches of each HSIC."""
    mean = lambda a, b: np.mean([unbiased_hsic(x, y) for x, y in zip(a, b, strict=True)])
    xy, xx, yy = ((batches_x, batches_y), (batches_x, batches_x), (batches_y, batches_y))
    return mean(*xy) / np.sqrt(mean(*xx) * mean(*yy))


def test_minibatches_are_equations_2_to_4():
    layers = [drawn(60, 5), drawn(60, 4, 2, seed=1), drawn(60, 30, seed=2)]
    layers[2][:, :5] += layers[0]
    alignment = cka.MinibatchCKA()
    for start in range(0, 60, 12):
        alignment.add([x[start : start + 12] for x in layers])
    found = alignment.result()
    batches = [x.reshape(5, 12, -1) for x in layers]
    expected = [[by_hand(x, y) for y in batches] for x in batches]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
    np.testing.assert_allclose(np.diag(found), 1)


def test_two_models_are_a_part_of_one():
    one, other = [drawn(20, 6), drawn(20, 9, seed=1)], [drawn(20, 7, seed=2)]
    both, apart = cka.MinibatchCKA(), cka.MinibatchCKA()
    both.add([*one, *other])
    apart.add(one, other)
    np.testing.assert_allclose(apart.result(), both.result()[:2, 2:])


def test_published_numbers():
    """The number that Demo.ipynb of the paper's authors prints.

    github.com/google-research/google-research, representation_similarity/Demo.ipynb.
    """
    legacy = np.random.RandomState(1337)
    x = legacy.randn(100, 10)
    y = legacy.randn(100, 10) + x
    alignment = cka.MinibatchCKA()
    alignment.add([x], [y])
    assert alignment.result().item() == pytest.approx(0.51346, abs=5e-6)


def test_neither_rotation_nor_scale_nor_offset_changes_it():
    x = drawn(40, 8)
    rotation = np.linalg.qr(drawn(8, 8, seed=2))[0]
    moved = 7 * x @ rotation + 1e4
    found = cka.MinibatchCKA()
    found.add([x, moved])
    assert found.result()[0, 1] == pytest.approx(1, abs=1e-6)


def test_size_of_batches_does_not_bias_it():
    x = drawn(3000, 50)
    y = np.concatenate([x[:, :10], drawn(3000, 40, seed=1)], axis=1)
    values = []
    for size in (10, 300):
        alignment = cka.MinibatchCKA()
        for start in range(0, 3000, size):
            alignment.add([x[start : start + size]], [y[start : start + size]])
        values.append(alignment.result().item())
    assert values[0] == pytest.approx(values[1], abs=0.02)


def test_what_cannot_be_compared():
    with refused():
        cka.MinibatchCKA().add([drawn(3, 2)])
    with refused():
        cka.MinibatchCKA().result()
    alignment = cka.MinibatchCKA()
    alignment.add([drawn(8, 2), np.full((8, 2), 0.1)])
    np.testing.assert_array_equal(np.isnan(alignment.result()), [[False, True], [True, True]])
