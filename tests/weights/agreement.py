"""Checks that PyTorch modules of other projects compute the same function as models here."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax.weights.files import from_array, safetensors

torch = pytest.importorskip("torch", reason="the extra `parity` is missing, see docs/install.md")

LOGITS = 1e-4  # float32 through a few layers, sums in another order
GRADIENTS = 1e-3  # relative to the largest
CLASSES = {"id2label": {0: "ant", 1: "bee", 2: "cat"}, "label2id": {"ant": 0, "bee": 1, "cat": 2}}

HF_TOY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip
HF_BIT = {"depths": [1, 1], "hidden_sizes": [256, 512]}
TIMM_TOY = {
    "img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5,
}  # fmt: skip


def config_of(hf, kind, **fields):
    """A toy's configuration in transformers, of a kind such as "ViT"."""
    return getattr(hf, f"{kind}Config")(**(HF_BIT if kind == "Bit" else HF_TOY) | CLASSES | fields)


def classifier(hf, kind, **fields):
    """A toy of transformers with a head and random parameters."""
    suffix = "ForImageClassification" + ("WithTeacher" if kind == "DeiT" else "")
    return randomise(getattr(hf, kind + suffix)(config_of(hf, kind, **fields)))


def some_images(height, width=None):
    shape = (2, height, width or height, 3)
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def randomise(module, deviation=lambda name: 0.3):
    """Randomises all parameters, including norms, biases and class token; sets evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.normal_(0, deviation(name), generator=generator)
    return module.eval()


def in_torch(images):
    return torch.tensor(images.transpose(0, 3, 1, 2))


def assert_same_function(theirs, ours, images, *, gradients=False, jit=False):
    """Compares results, and gradients by the input; `theirs` maps [B, 3, H, W] to [B, ...].

    Without jit, tests with the same shapes share JAX's compiled operations.
    """
    if not gradients:
        with torch.no_grad():
            expected = theirs(in_torch(images)).numpy()
        graph, params = nnx.split(ours)
        run = jax.jit(lambda params, x: nnx.merge(graph, params)(x)) if jit else None
        results = run(params, images) if run else ours(images)
        np.testing.assert_allclose(results, expected, atol=LOGITS, rtol=0)
        return
    x = in_torch(images).requires_grad_()
    expected = theirs(x)
    weight = torch.linspace(-1, 1, expected.numel()).reshape(expected.shape)
    (expected * weight).sum().backward()

    @jax.jit
    def run(x):
        results, back = jax.vjp(ours, x)
        return results, back(weight.numpy())[0]

    results, gradient = run(images)
    np.testing.assert_allclose(results, expected.detach().numpy(), atol=LOGITS, rtol=0)
    reference = x.grad.numpy().transpose(0, 2, 3, 1)
    assert np.abs(gradient - reference).max() <= GRADIENTS * np.abs(reference).max()


def loaded_in_full(auto, folder):
    """The model that transformers loads, with no array missing, unexpected or misshapen."""
    model, notes = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(notes[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def save_timm(folder, model, **config):
    folder.mkdir()
    arrays = {name: from_array(x.numpy()) for name, x in model.state_dict().items()}
    safetensors.write(folder / "model.safetensors", arrays)
    (folder / "config.json").write_text(json.dumps(config))
