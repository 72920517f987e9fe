"""Heads for each place, and windows of large images."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.draw import masks as pictures
from vit_jax.models import dense
from vit_jax.models.head import num_image_classes

SAME_MATH = 1e-5
TINY = {"depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2}


def model(head, size=16, **fields):
    return models.create(
        "ViT-Ti/4", num_classes=3, image_size=size, dense=head, rngs=nnx.Rngs(0), **TINY | fields
    )


@pytest.mark.parametrize("fields", [{}, {"pool": "avg"}, {"registers": 2, "pool": "cls_avg"}])
def test_a_linear_head_is_a_batch_norm_and_a_product_of_each_patch(fields):
    made = model("linear", **fields)
    made.head.classes.kernel[...] = jax.random.normal(jax.random.key(0), (16, 3))
    images = jax.random.normal(jax.random.key(1), (5, 16, 16, 3))
    tokens = np.asarray(made.tokens(images))[:, -16:].reshape(5, 4, 4, 16)
    for train, mean, variance in (
        (False, np.zeros(16), np.ones(16)),
        (True, tokens.mean((0, 1, 2)), tokens.var((0, 1, 2))),
    ):
        normed = (tokens - mean) / np.sqrt(variance + 1e-5)
        logits = made(images, train=train, rngs=jax.random.key(2))
        wanted = normed @ np.asarray(made.head.classes.kernel[...])
        np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


def test_features_of_an_image_are_the_mean_of_its_patches():
    """As rows of `embed` and neighbours need them, one vector an image."""
    made = model("linear", registers=2)
    images = jax.random.normal(jax.random.key(1), (3, 16, 16, 3))
    expected = made.tokens(images)[:, -16:].mean(axis=1)
    np.testing.assert_allclose(made.features(images), expected, rtol=SAME_MATH, atol=SAME_MATH)
    assert num_image_classes(made) == 0


def test_a_convolutional_head_upsamples_by_4():
    assert model("conv")(jnp.zeros((2, 16, 16, 3))).shape == (2, 16, 16, 3)


def test_windows_cover_an_image_and_are_averaged():
    """Of a model that gives a window's mean colour everywhere."""

    class Mean:
        num_classes = 3
        spec = types.SimpleNamespace(dense="linear")
        preprocess = models.Preprocess((4, 4), (4, 4))

        def __call__(self, images):
            return jnp.broadcast_to(images.mean((1, 2), keepdims=True), (len(images), 2, 2, 3))

    images = jax.random.normal(jax.random.key(0), (2, 7, 9, 3))
    sums, counts = np.zeros((2, 7, 9, 3)), np.zeros((7, 9, 1))
    for top in (0, 3):  # stride 3 of 4: the second window ends at the border
        for left in (0, 3, 5):
            at = np.s_[top : top + 4, left : left + 4]
            sums[:, *at] += np.asarray(images)[:, *at].mean((1, 2), keepdims=True)
            counts[at] += 1
    found = dense.sliding(Mean(), images, 0.75)
    np.testing.assert_allclose(found, sums / counts, rtol=SAME_MATH, atol=SAME_MATH)
    one = images[:, :4, :4]
    np.testing.assert_array_equal(
        dense.sliding(Mean(), one, 0.75), dense.resized(Mean()(one), (4, 4))
    )


def test_logits_are_upsampled_as_torch_does():
    functional = pytest.importorskip("torch").nn.functional
    import torch

    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    theirs = functional.interpolate(
        torch.tensor(x).permute(0, 3, 1, 2), (13, 20), mode="bilinear", align_corners=False
    )
    ours = dense.resized(jnp.asarray(x), (13, 20))
    np.testing.assert_allclose(ours, theirs.permute(0, 2, 3, 1), rtol=SAME_MATH, atol=SAME_MATH)


def test_the_palette_is_that_of_pascal_voc():
    colours = pictures.palette()
    assert colours[[0, 1, 2, 15, 20, 255]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [192, 128, 128], [0, 64, 128], [224, 224, 192],
    ]  # fmt: skip
