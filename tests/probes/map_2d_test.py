import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.probes.map_2d import METHODS, map_2d

PACKAGES = {"tsne": "sklearn", "umap": "umap"}


def groups(each=20):
    """Two groups of features, far apart."""
    x = np.random.default_rng(0).normal(size=(2, each, 8))
    return (x + np.array([0, 40])[:, None, None]).reshape(-1, 8)


def test_pca_equals_numpys():
    x = groups()
    values = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    found, expected = map_2d(x), (values.U * values.S)[:, :2]
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found, signs * expected, atol=1e-5 * np.abs(expected).max())
    assert map_2d(np.ones((3, 1))).tolist() == [[0, 0]] * 3


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
    with pytest.raises(UserError, match=r"vit-jax-pretraining\[maps\]"):
        map_2d(groups(), method)


def test_bad_input():
    with pytest.raises(UserError, match=r"'tnse'.*tsne"):
        map_2d(groups(), "tnse")
    with pytest.raises(UserError, match="2 images: it takes at least 3"):
        map_2d(groups()[:2])
