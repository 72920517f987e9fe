import numpy as np
import pytest

from tests.messages import refused
from vit_jax.probes.principal import METHODS, check_map, colours, map_2d, principal, rank_me

ROUNDING = 1e-5


@pytest.mark.parametrize("shape", [(12, 20), (300, 5)], ids=["wide", "tall"])
def test_equals_a_singular_value_decomposition(shape):
    x = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1) + 3
    found = principal(x, 4)
    _, values, directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    variances, directions = values[:4] ** 2, directions[:4]
    signs = np.sign(np.sum(found.directions * directions, axis=1, keepdims=True))
    np.testing.assert_allclose(found.directions, signs * directions, atol=ROUNDING)
    total = np.sum((x - x.mean(axis=0)) ** 2)
    np.testing.assert_allclose(found.explained, variances / total, rtol=ROUNDING)
    np.testing.assert_allclose(found.coordinates(x), (x - x.mean(axis=0)) @ found.directions.T)
    assert (found.directions.max(axis=1) >= -found.directions.min(axis=1)).all()


def test_no_more_components_than_there_are():
    x = np.random.default_rng(0).normal(size=(5, 9))
    found = principal(x, 28)
    assert found.directions.shape == (4, 9)
    assert found.explained.sum() == pytest.approx(1)
    assert principal(np.ones((3, 2)), 2).explained.tolist() == [0, 0]
    assert principal(np.ones((1, 2)), 2).directions.shape == (0, 2)


@pytest.mark.parametrize("rank", [1, 3, 20])
def test_equal_singular_values_count(rank):
    left, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 20)))
    matrix = left * (np.arange(20) < rank)
    assert rank_me(matrix) == pytest.approx(rank, rel=1e-4)


def test_equals_components_written_out():
    x = np.random.default_rng(0).normal(size=(3, 4, 5, 16)) * np.arange(16, 0, -1)
    flat = x.reshape(-1, 16).astype(np.float32)
    centred = flat - flat.mean(axis=0, dtype=np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    along = np.empty((60, 3))
    for k in range(3):
        direction = vectors[:, -1 - k]
        along[:, k] = centred @ (direction * np.sign(direction[np.abs(direction).argmax()]))
    low, high = np.percentile(along, [1, 99], axis=0)
    expected = np.clip((along - low) / (high - low), 0, 1).reshape(3, 4, 5, 3)
    np.testing.assert_allclose(colours(x), expected, atol=ROUNDING)


PACKAGES = {"tsne": "sklearn", "umap": "umap"}


def groups(each=20):
    """Two groups of features, far apart."""
    x = np.random.default_rng(0).normal(size=(2, each, 8))
    return (x + np.array([0, 40])[:, None, None]).reshape(-1, 8)


@pytest.mark.parametrize("method", METHODS)
def test_groups_are_apart_and_the_same_twice(method):
    if method in PACKAGES:
        pytest.importorskip(PACKAGES[method])
    found = map_2d(groups(), method)
    assert found.shape == (40, 2)
    centres = found.reshape(2, 20, 2).mean(axis=1, keepdims=True)
    spread = np.linalg.norm(found.reshape(2, 20, 2) - centres, axis=-1)
    assert np.linalg.norm(centres[0] - centres[1]) > 2 * spread.mean()
    np.testing.assert_array_equal(map_2d(groups(), method), found)
    assert map_2d(groups()[:3], method).shape == (3, 2)


@pytest.mark.parametrize("method", PACKAGES)
def test_missing_package_is_named(method, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(method, "vit-jax-pretraining[maps]"):
        check_map(method)


def test_two_values_by_hand():
    p = np.array([0.75, 0.25]) + 1e-7
    assert rank_me(np.diag([3.0, 1.0])) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-12)
