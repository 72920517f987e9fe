"""Masked patch prediction against NumPy."""

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.learning.method import StepContext, StepInputs
from vit_jax.learning.methods import masked_patch

SIZE, PATCH, WIDTH, N = 32, 8, 16, 16
B = 64
SAME = 1e-5


class Watched:
    """A model that keeps what its blocks were given, and gives it back as their result."""

    def __init__(self, real):
        self.real, self.spec, self.method = real, real.spec, real.method
        self.seen = None

    def patches(self, images):
        return self.real.patches(images)

    def add_prefix_and_positions(self, patches):
        self.seen = patches
        return patches

    def encode(self, tokens, key):
        return tokens


def learn(method, images):
    """(losses, numbers, the patches seen, all patches, the head) of a model without blocks."""
    real = models.create(
        "ViT-Ti/8", width=WIDTH, depth=1, num_heads=2, mlp_dim=32, pool="avg", num_classes=0,
        image_size=SIZE, rngs=nnx.Rngs(0),
    )  # fmt: skip
    real.method = method.extend(real, nnx.Rngs(1))
    model = Watched(real)
    normalised = (images.astype(np.float32) / 255 - 0.5) / 0.5
    inputs = StepInputs(normalised, np.zeros(()), {"image": images})
    found = method.loss(model, inputs, jax.random.key(3), StepContext(None))
    return found, *map(np.asarray, (model.seen, real.patches(normalised))), real.method


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (B, SIZE, SIZE, 3)).astype(np.uint8)


def kinds(seen, patches, mask):
    """What became of each patch, [B, N]: kept, the mask, or another of the image's."""
    is_mask = np.isclose(seen, np.asarray(mask)).all(-1)
    kept = (seen == patches).all(-1)
    from_image = (seen[:, :, None] == patches[:, None]).all(-1).any(-1)
    other = from_image & ~kept
    assert (is_mask | kept | other).all()
    return is_mask, kept, other


def test_of_half_the_patches_80_percent_are_masked_and_10_are_others(images):
    found, seen, patches, extra = learn(masked_patch.MaskedPatch(), images)
    is_mask, kept, other = kinds(seen, patches, extra.mask[...])
    assert abs(is_mask.mean() - 0.4) < 0.03
    assert abs(other.mean() - 0.05) < 0.02
    assert abs(kept.mean() - 0.55) < 0.03
    # Exactly half of each image's patches may be corrupted.
    assert ((is_mask | other).sum(1) <= N // 2).all()
    assert found.losses.shape == (B,)


@pytest.mark.parametrize("target", ["mean_colour", "colours_4x4", "pixels"])
def test_losses_as_in_numpy(images, target, monkeypatch):
    # With all corrupted patches masked, what was corrupted is known from outside.
    monkeypatch.setattr(masked_patch, "TO_MASK", 1.0)
    found, seen, patches, extra = learn(masked_patch.MaskedPatch(target=target), images)
    is_mask, _, _ = kinds(seen, patches, extra.mask[...])
    assert (is_mask.sum(1) == N // 2).all()
    predicted = seen @ np.asarray(extra.head.kernel[...]) + np.asarray(extra.head.bias[...])
    cut = images.reshape(B, 4, PATCH, 4, PATCH, 3).swapaxes(2, 3).reshape(B, N, PATCH, PATCH, 3)
    if target == "pixels":
        wanted = (cut / 255 - 0.5) / 0.5
        losses = np.square(predicted - wanted.reshape(B, N, -1)).mean(-1)
        assert found.metrics == {}
    else:
        side = {"mean_colour": 1, "colours_4x4": 4}[target]
        p = PATCH // side
        cells = cut.reshape(B, N, side, p, side, p, 3).mean(axis=(3, 5)).reshape(B, N, side**2, 3)
        level = np.minimum(np.floor(cells / 255 * 8), 7).astype(int)
        colours = level @ [64, 8, 1]
        logits = predicted.reshape(B, N, side**2, 512).astype(np.float64)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        losses = -np.take_along_axis(logits, colours[..., None], -1)[..., 0].mean(-1)
        right = (logits.argmax(-1) == colours).mean(-1)
        accuracy = (right * is_mask).sum(1) / is_mask.sum(1)
        np.testing.assert_allclose(found.metrics["accuracy"], accuracy, rtol=SAME)
    wanted = (losses * is_mask).sum(1) / is_mask.sum(1)
    np.testing.assert_allclose(found.losses, wanted, rtol=SAME)
