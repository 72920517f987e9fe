import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.learning.losses import Softmax
from vit_jax.learning.mixing import mix

ROUNDING = 1e-6  # a product and a sum in float32
SIZE = 4


def batch(side=2):
    images = jax.random.uniform(jax.random.key(0), (SIZE, side, side, 3))
    return images, jax.nn.one_hot(jnp.arange(SIZE), SIZE), jnp.ones(SIZE)


def mixed(*, key=1, side=2, targets=None, weight=None, progress=0.0, **fields):
    images, own_targets, own_weight = batch(side)
    return mix(
        images,
        own_targets if targets is None else targets,
        own_weight if weight is None else weight,
        Softmax(**fields),
        key=jax.random.key(key) if isinstance(key, int) else key,
        progress=progress,
    )


def test_mixup_blends_every_pair_with_one_ratio():
    images, targets, weight = batch()
    blended, mixed_targets, mixed_weight = mixed(mixup=0.2)
    ratio = mixed_targets[0, 0]
    assert 0.5 <= ratio <= 1.0
    for i in range(SIZE):
        after = (i + 1) % SIZE
        expected = ratio * images[i] + (1 - ratio) * images[after]
        np.testing.assert_allclose(blended[i], expected, atol=ROUNDING)
        expected = ratio * targets[i] + (1 - ratio) * targets[after]
        np.testing.assert_allclose(mixed_targets[i], expected, atol=ROUNDING)
    np.testing.assert_array_equal(mixed_weight, weight)


def boxes(key, side=8):
    """Mask of each image's pixels that come from its partner: bool [B, H, W]."""
    images, *_ = batch(side)
    blended, targets, _ = mixed(cutmix=1.0, key=key, side=side)
    own = np.all(blended == images, axis=-1)
    partners = np.all(blended == np.roll(images, -1, axis=0), axis=-1)
    assert np.all(own ^ partners)  # each pixel is from one of the two
    return partners, targets


@pytest.mark.parametrize("key", range(5))
def test_cutmix_pastes_one_box_of_the_partner(key):
    inside, targets = boxes(key)
    rows, columns = inside[0].any(axis=1), inside[0].any(axis=0)
    np.testing.assert_array_equal(inside[0], rows[:, None] & columns[None, :])
    for one_axis in (rows, columns):  # contiguous
        assert np.abs(np.diff(one_axis.astype(int))).sum() <= 2
    for i in range(SIZE):
        np.testing.assert_array_equal(inside[i], inside[0])
        assert targets[i, i] == pytest.approx(1 - inside[0].mean())
        assert targets[i, (i + 1) % SIZE] == pytest.approx(inside[0].mean())


def test_boxes_of_cutmix_have_the_published_sizes_and_places():
    """Beta(1, 1) is uniform, so the area of an uncut box is uniform too: E[area of side 2 * (floor
    (16 s) // 2)]. Cut at the border, each side keeps on average what the sum below says."""
    length = 16
    keys = jax.random.split(jax.random.key(3), 4000)
    areas = jax.vmap(lambda k: 1 - mixed(cutmix=1.0, key=k, side=length)[1][0, 0])(keys)
    uniform = (np.arange(100_000) + 0.5) / 100_000
    halves = np.floor(np.sqrt(uniform) * length).astype(int) // 2
    kept = [
        np.mean([min(c + h, length) - max(c - h, 0) for c in range(length)]) / length
        for h in range(length // 2 + 1)
    ]
    expected = np.mean(np.array(kept)[halves] ** 2)  # both sides have one length
    standard_error = float(areas.std()) / 4000**0.5
    assert float(areas.mean()) == pytest.approx(expected, abs=4 * standard_error)


@pytest.mark.parametrize("cutmix_share", [0.5, 0.2, 1.0])
def test_with_both_each_step_draws_either(cutmix_share):
    images, *_ = batch(8)
    keys = jax.random.split(jax.random.key(4), 400)
    fields = {"mixup": 1.0, "cutmix": 1.0, "cutmix_share": cutmix_share}
    shares = jax.vmap(lambda k: mixed(key=k, side=8, **fields)[0][0])(keys)
    is_own = np.all(shares == images[0], axis=-1)
    is_partners = np.all(shares == images[1], axis=-1)
    cut = np.all(is_own | is_partners, axis=(1, 2))
    assert cut.mean() == pytest.approx(cutmix_share, abs=0.1)  # 4 standard errors


@pytest.mark.parametrize("alphas", [{"mixup": 0.5}, {"cutmix": 1.0}])
def test_a_pair_with_a_skipped_example_is_skipped(alphas):
    *_, weight = mixed(**alphas, weight=jnp.array([1.0, 0.0, 1.0, 1.0]), side=8)
    np.testing.assert_array_equal(weight, [0, 0, 1, 1])


def test_ratios_of_mixup_follow_the_folded_beta_distribution():
    """Beta(1, 1) is uniform: folded at a half, its mean is 3/4."""
    keys = jax.random.split(jax.random.key(2), 2000)
    ratios = jax.vmap(lambda k: mixed(mixup=1.0, key=k)[1][0, 0])(keys)
    assert float(ratios.mean()) == pytest.approx(0.75, abs=0.02)  # 6 standard errors


@pytest.mark.parametrize("alphas", [{"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}])
@pytest.mark.parametrize(("mode", "sharing"), [("batch", SIZE), ("pair", 2), ("element", 1)])
def test_examples_of_a_mode_share_their_draws(mode, sharing, alphas):
    images, targets, _ = batch(8)
    blended, mixed_targets, _ = mixed(mix_mode=mode, side=8, key=2, **alphas)
    shares = np.diag(mixed_targets)
    assert len(set(np.round(shares, 6).tolist())) == SIZE // sharing
    for i in range(SIZE):
        partner = i ^ 1 if mode == "pair" else (i + 1) % SIZE
        expected = shares[i] * targets[i] + (1 - shares[i]) * targets[partner]
        np.testing.assert_allclose(mixed_targets[i], expected, atol=ROUNDING)
        # In either kind the mean of the image is off by what its partner has of it.
        weights = (blended[i] - images[partner]) / (images[i] - images[partner])
        assert float(weights.mean()) == pytest.approx(shares[i], abs=1e-4)


@pytest.mark.parametrize("mode", ["batch", "pair", "element"])
def test_what_is_not_mixed_stays_as_it_is(mode):
    """With its weight, even beside an example that is skipped."""
    images, targets, _ = batch(8)
    fields = {"mixup": 1.0, "cutmix": 1.0, "mix_mode": mode, "side": 8}
    bad = jnp.array([0.0, 1.0, 1.0, 1.0])
    for still in ({"mix_probability": 0.0}, {"mix_until": 0.85, "progress": 0.85}):
        unmixed = mixed(weight=bad, **fields, **still)
        for ours, expected in zip(unmixed, (images, targets, bad), strict=True):
            np.testing.assert_array_equal(ours, expected)
    before_its_end = mixed(mix_until=0.85, progress=0.849, **fields)
    np.testing.assert_array_equal(before_its_end[0], mixed(**fields)[0])


def test_as_many_are_mixed_as_the_probability_says():
    keys = jax.random.split(jax.random.key(5), 1000)
    fields = {"mixup": 1.0, "mix_probability": 0.3, "mix_mode": "element"}
    shares = jax.vmap(lambda k: jnp.diag(mixed(key=k, **fields)[1]))(keys)
    assert (shares < 1).mean() == pytest.approx(0.3, abs=0.03)  # 4 standard errors
