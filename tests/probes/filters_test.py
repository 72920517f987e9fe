import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.nn.resnet import standardized
from vit_jax.probes import filters

ROUNDING = 1e-5


def params(name):
    """Random parameters of a model, by name."""
    make = lambda: models.create(name, num_classes=3, image_size=32, rngs=nnx.Rngs(0))
    shapes = pytrees.flatten(nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param)))
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=x.shape).astype(np.float32) if "kernel" in name and x.ndim == 4 else x
        for name, x in shapes.items()
    }


def by_hand(kernel):
    """Variances and components from the filters' covariance matrix."""
    rows = kernel.reshape(-1, kernel.shape[-1]).astype(np.float64)
    variances, vectors = np.linalg.eigh(np.cov(rows))
    return variances[::-1], vectors[:, ::-1].T.reshape(-1, *kernel.shape[:3])


def test_components_are_those_of_the_covariance():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 64)).astype(np.float32)
    found = filters.components(kernel)
    variances, pictures = by_hand(kernel)
    assert found.pictures.shape == (28, 4, 4, 3)
    signs = np.sign(np.sum(found.pictures * pictures[:28], axis=(1, 2, 3), keepdims=True))
    np.testing.assert_allclose(found.pictures, signs * pictures[:28], atol=ROUNDING)
    np.testing.assert_allclose(found.explained, variances[:28] / variances.sum(), rtol=ROUNDING)


def test_small_models_have_fewer():
    kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 6))
    assert filters.components(kernel).pictures.shape == (5, 2, 2, 3)
    assert filters.components(np.tile(kernel, 9)).pictures.shape == (12, 2, 2, 3)


def test_first_layer_of_each_family():
    found = filters.first_layer(params("ViT-Ti/16"))
    assert (found.kernel.shape, found.what) == ((16, 16, 3, 192), "patch projection")
    for name in ("R50x1", "R50+ViT-B/16"):
        of_all = params(name)
        found = filters.first_layer(of_all)
        assert found.kernel.shape == (7, 7, 3, 64)
        assert found.what == "first convolution of the ResNet"
        (raw,) = (x for name, x in of_all.items() if name.endswith("resnet/root/conv/kernel"))
        used = standardized(raw, 1e-10, "variance")
        np.testing.assert_allclose(found.kernel, used, atol=ROUNDING)
    with pytest.raises(UserError, match=r"no filters of an image's colours.*patches/kernel"):
        filters.first_layer({"head/kernel": np.zeros((3, 3))})
