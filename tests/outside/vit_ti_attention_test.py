"""Rollout and relevance of the trained ViT-Ti/16 against torch's gradients through timm's ViT."""

import numpy as np
import pytest

from tests.outside.vit_ti_test import WEIGHTS
from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax import weights
from vit_jax.models import images, observe

ROUNDING = 1e-3  # of float32 through 12 layers and back, relative to the largest
PHOTOS = ("n01514668_10054.JPEG", "n02127052_10040.JPEG", "n03764736_10075.JPEG")
OTHER = 281  # a class that none of them shows

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"needs {WEIGHTS}"),
]


@pytest.fixture(scope="module")
def model():
    return weights.load(WEIGHTS)


@pytest.fixture(scope="module")
def photos(model):
    return np.stack([images.load(WEIGHTS / "images" / name, model.preprocess) for name in PHOTOS])


@pytest.fixture(scope="module")
def captured(timm, photos):  # noqa: F811
    """`captured(classes)`: logits; weights [L, B, H, N, N]; gradients by them; norms [L, B, N]."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    theirs.load_state_dict(load_file(WEIGHTS / "model.safetensors"))
    kept, norms = [], []
    for block in theirs.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: kept.append(out))
        block.register_forward_hook(lambda _, __, out: norms.append(out.norm(dim=-1)))

    def capture(classes):
        kept.clear()
        norms.clear()
        logits = theirs(torch.from_numpy(photos).permute(0, 3, 1, 2))
        chosen = logits[range(len(photos)), classes].sum()
        gradients = torch.autograd.grad(chosen, kept)
        stack = lambda arrays: np.stack([x.detach().numpy() for x in arrays]).astype(np.float64)
        return logits.detach().numpy(), stack(kept), stack(gradients), stack(norms)

    return capture


def check(maps, expected):
    expected = expected.reshape(maps.shape)
    for one, other in zip(maps, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=ROUNDING * other.max())


def test_weights_rollout_and_norms(model, photos, captured):
    logits, theirs, _, norms = captured([0, 0, 0])
    layers = (0, 5, 11)
    seen = observe.look(
        model, photos, (observe.Weights(layers), observe.Rollout(), observe.TokenNorms())
    )
    np.testing.assert_allclose(seen.logits, logits, atol=1e-4)
    expected = theirs[list(layers)].swapaxes(0, 1)
    np.testing.assert_allclose(seen.results[0], expected, atol=1e-4)
    rollout = np.eye(197)
    for layer in theirs:
        added = layer.mean(axis=1) + np.eye(197)
        rollout = added / added.sum(axis=-1, keepdims=True) @ rollout
    check(seen.results[1].patches, rollout[:, 0, 1:])
    of_blocks = seen.results[2].blocks
    np.testing.assert_allclose(of_blocks.class_token[..., 0], norms[..., 0].T, rtol=ROUNDING)
    patches = of_blocks.patches.reshape(3, 12, -1)
    np.testing.assert_allclose(patches, norms[..., 1:].swapaxes(0, 1), rtol=ROUNDING)


@pytest.mark.parametrize("classes", [None, [OTHER] * 3], ids=["largest", "another"])
def test_relevance(model, photos, captured, classes):
    found = observe.relevance(model, photos, classes)
    _, theirs, gradients, _ = captured(found.classes.tolist())
    relevant = np.eye(197)
    for layer, gradient in zip(theirs, gradients, strict=True):
        relevant = relevant + np.maximum(layer * gradient, 0).mean(axis=1) @ relevant
    check(found.map.patches, relevant[:, 0, 1:])
