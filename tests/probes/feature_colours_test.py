import numpy as np

from vit_jax.probes.feature_colours import colours

ROUNDING = 1e-5


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


def test_same_patch_in_two_images_has_the_same_colour():
    x = np.random.default_rng(0).normal(size=(2, 9, 8))
    x[1, 3] = x[0, 7]
    found = colours(x)
    np.testing.assert_array_equal(found[1, 3], found[0, 7])
    assert found.min() == 0
    assert found.max() == 1


def test_missing_components_are_gray():
    two = np.random.default_rng(0).normal(size=(1, 9, 2))
    assert (colours(two)[..., 2] == 0.5).all()
    assert (colours(np.full((2, 4, 8), 0.1)) == 0.5).all()
    assert np.isfinite(colours(two[:, :1])).all()
