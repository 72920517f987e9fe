"""Activations by name are those of the forward pass, whatever program computes it."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models
from vit_jax.models import activations

ROUNDING = 1e-5
SIZE = 16


def make(name="ViT-Ti/4", **fields):
    toy = {"depth": 3, "width": 16, "mlp_dim": 32, "num_heads": 2} if "ViT" in name else {}
    return models.create(
        name, num_classes=5, image_size=SIZE, rngs=nnx.Rngs(0), **{**toy, **fields}
    )


IMAGES = jax.random.normal(jax.random.key(1), (2, SIZE, SIZE, 3))


@pytest.mark.parametrize(
    "fields", [{}, {"scan": True, "remat": "full"}, {"parallel": True}, {"pool": "map"}]
)
def test_of_a_vit(fields):
    model = make(**fields)
    found = model.activations(IMAGES, ["logits", "features", "norm", "blocks/1", "embed"])
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=ROUNDING)
    close(found["logits"], model(IMAGES))
    close(found["features"], model.features(IMAGES))
    close(found["norm"], model.tokens(IMAGES))
    close(found["blocks/1"], model.tokens(IMAGES, layers=(1,))[0])
    close(found["embed"], model.embed(IMAGES))


def test_branches_add_up_to_the_block():
    model = make()
    names = ["blocks/1", "blocks/2", "blocks/2/attention", "blocks/2/mlp"]
    before, after, attention, mlp = model.activations(IMAGES, names).values()
    np.testing.assert_allclose(before + attention + mlp, after, atol=ROUNDING)
    assert np.abs(attention).max() > 0.01 < np.abs(mlp).max()


def test_of_a_convnet():
    model = make("R50x1", units=(1, 1), root_width=32)
    found = model.activations(IMAGES, ["blocks/0", "blocks/1", "logits"])
    for layer in range(2):
        expected = model.tokens(IMAGES, layers=(layer,))[0]
        shown = found[f"blocks/{layer}"].reshape(expected.shape)
        largest = np.abs(expected).max()
        np.testing.assert_allclose(shown, expected, rtol=0, atol=ROUNDING * largest)
    np.testing.assert_allclose(found["logits"], model(IMAGES), atol=ROUNDING)


def test_unknown_names_are_told_the_nearest():
    model = make()
    assert activations.names(model, IMAGES)[:3] == ["patches", "embed", "blocks/0/attention"]
    with refused("'blocks/3'", "blocks/2"):
        model.activations(IMAGES, ["blocks/3"])
