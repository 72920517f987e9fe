"""The masked autoencoder; tests/outside/methods_test.py compares it with its authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import mae

SIZE, PATCH, WIDTH, HEADS = 32, 8, 32, 2
SAME = 1e-5


@pytest.mark.slow
def test_masked_patches_do_not_reach_the_encoder():
    """Only the loss sees them: gradients of its predictions by their pixels are 0."""
    model = models.create(
        "ViT-Ti/8", width=WIDTH, depth=1, num_heads=HEADS, mlp_dim=64, registers=2, num_classes=0,
        image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    images = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, 3))
    visible = jnp.array([[3, 7, 1], [15, 0, 8]])
    tokens = lambda images: mae.encode_visible(model, images, visible, None)
    assert tokens(images).shape == (2, 4, WIDTH)
    grads = jax.grad(lambda images: jnp.sum(jnp.square(tokens(images))))(images)
    moved = np.abs(grads).reshape(2, 4, PATCH, 4, PATCH, 3).max(axis=(2, 4, 5)).reshape(2, 16)
    assert [np.flatnonzero(row).tolist() for row in moved] == [[1, 3, 7], [0, 8, 15]]


def test_normalised_pixels_have_mean_0_and_variance_1():
    patches = np.random.default_rng(0).normal(3, 2, (2, 5, 4, 4, 3)).astype(np.float32)
    found = np.asarray(mae.MAE().targets(patches))
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(-1, ddof=1), 1, rtol=1e-5)
    assert mae.MAE(normalize_pixels=False).targets(patches).tolist() == (
        patches.reshape(2, 5, 48).tolist()
    )


def test_all_masked_patches_count_and_no_others(drawn):
    """A prediction of zeros is off by the variance of normalised pixels, (P^2 3 - 1) / P^2 3."""
    make = lambda: models.create(
        "ViT-Ti/8", width=WIDTH, depth=1, num_heads=HEADS, mlp_dim=64, num_classes=0,
        image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    model = drawn(make)
    pixels = 3 * PATCH**2
    model.method = lambda tokens, places, layout: jnp.zeros((2, layout.num_patches, pixels))
    images = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, 3))

    @jax.jit
    def losses(images):
        inputs = StepInputs(images, jnp.zeros(()), {})
        return mae.MAE().loss(model, inputs, jax.random.key(1), StepContext(None)).losses

    np.testing.assert_allclose(losses(images), (pixels - 1) / pixels, rtol=SAME)
