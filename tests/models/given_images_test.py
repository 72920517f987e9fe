"""Images of another shape or dtype than a model takes."""

import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models

MODELS = {
    "ViT-Ti/4": {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2},
    "R50x1": {"units": (1,), "root_width": 32},
    "EfficientNet-B0": {"width_coefficient": 0.1, "depth_coefficient": 0.1},
    "R50+ViT-B/16": {
        "units": (1,), "root_width": 32, "patch_size": 8, "depth": 1, "width": 8, "mlp_dim": 8,
        "num_heads": 2,
    },
    "Axial-ViT-B/32": {
        "patch_size": 4, "depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2
    },
}  # fmt: skip
WRONG = {
    "one image": np.zeros((16, 16, 3), np.float32),
    "channels first": np.zeros((1, 3, 16, 16), np.float32),
    "gray": np.zeros((1, 16, 16, 1), np.float32),
    "alpha": np.zeros((1, 16, 16, 4), np.float32),
    "bytes": np.zeros((1, 16, 16, 3), np.uint8),
    "integers": np.zeros((1, 16, 16, 3), np.int64),
    "flags": np.zeros((1, 16, 16, 3), bool),
    "list": [[0.0]],
    "text": "photo.jpg",
    "none": np.zeros((0, 16, 16, 3), np.float32),
}


@pytest.fixture(scope="module")
def made():
    return {
        name: models.create(name, num_classes=2, image_size=16, rngs=nnx.Rngs(0), **fields)
        for name, fields in MODELS.items()
    }


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_images_are_refused(made, name, wrong):
    for method in ("__call__", "features", "tokens"):
        with pytest.raises(ValueError, match=r"\[B, 16, 16, 3\]"):
            getattr(made[name], method)(WRONG[wrong])


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_a_model_has_not(made, name):
    images = np.zeros((1, 16, 16, 3), np.float32)
    for layer in (made[name].spec.depth, -1):
        with refused(layer):
            made[name].tokens(images, layers=(layer,))


def test_images_of_another_size(made):
    for name, model in made.items():
        images = np.zeros((1, 32, 16, 3), np.float32)
        if "ViT" in name:
            with refused("[B, 16, 16, 3]", "[1, 32, 16, 3]"):
                model(images)
            with refused("[1, 17, 16, 3]"):  # a patch's rest
                model(np.zeros((1, 17, 16, 3), np.float32))
        else:  # a ResNet takes any
            assert model(images).shape == (1, 2)
