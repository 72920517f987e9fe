"""Rollout, relevance and attention distance against code that was published with papers on them."""

import json

import numpy as np
import pytest
from flax import nnx

from tests.outside.programs.drawing import drawn_images
from vit_jax import models, weights
from vit_jax.models import observe
from vit_jax.probes.attention import mean_distance, patch_distances

load_file = pytest.importorskip("safetensors.numpy").load_file

ROUNDING = 1e-4  # of float32 gradients through three blocks, relative to the largest
SIDE, CLASSES = 32, (2, 0, 4)
SHAPE = {"depth": 3, "width": 128, "mlp_dim": 512, "num_heads": 2, "gelu": "exact"}


@pytest.fixture(scope="module")
def model():
    made = models.create(
        "ViT-Ti/8", num_classes=5, image_size=SIDE, rngs=nnx.Rngs(0), **SHAPE
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for path, value in nnx.to_flat_state(nnx.state(made, nnx.Param)):
        scale = 0.3 if path[-2:] == ("qkv", "kernel") else 0.1
        value[...] = value[...] + scale * rng.normal(size=value.shape)
    return made


@pytest.fixture
def inputs(model, tmp_path):
    """What the program needs to build the same ViT."""

    def make():
        loaded = weights.Loaded(model, "ViT-Ti/8", None, step=0)
        weights.save(loaded, tmp_path / "saved", "timm")
        fields = {
            "img_size": SIDE, "patch_size": 8, "num_classes": 5, "embed_dim": 128, "depth": 3,
            "num_heads": 2,
        }  # fmt: skip
        return load_file(tmp_path / "saved" / "model.safetensors") | {
            "fields": json.dumps(fields), "images": drawn_images(SIDE, 3), "classes": CLASSES,
        }  # fmt: skip

    return make


def test_chefers_rollout_and_relevance(theirs, model, inputs):
    expected = theirs("Transformer-Explainability", "chefer_relevance", inputs)
    images = drawn_images(SIDE, 3)
    found = observe.relevance(model, images, CLASSES)
    limit = ROUNDING * np.abs(expected["logits"]).max()
    np.testing.assert_allclose(found.logits, expected["logits"], atol=limit)
    rollout = observe.rollout(model, images).patches
    for name, maps in (("relevance", found.map.patches), ("rollout", rollout)):
        rows = expected[name].reshape(maps.shape)
        assert rows.std(axis=(1, 2)).min() > 0.01 * rows.max()
        np.testing.assert_allclose(maps, rows, atol=ROUNDING * rows.max())


def test_keras_attention_distance(theirs):
    """Theirs takes no notice of what goes to the class token; here it is relative to the rest."""
    rng = np.random.default_rng(0)
    of_patches = rng.dirichlet(np.full(16, 0.3), (2, 3, 16))
    whole = np.zeros((2, 3, 17, 17))
    whole[:, :, 1:, 1:] = of_patches
    expected = theirs("keras-io", "keras_attention_distance", lambda: {"weights": whole})
    found = mean_distance(0.4 * of_patches, patch_distances((4, 4), (16, 16)))
    np.testing.assert_allclose(found, expected["distances"], rtol=1e-12)
