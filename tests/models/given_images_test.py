"""Images of another shape or dtype than a model takes."""

import jax
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
    "AxialResNet-50": {"units": (1,), "root_width": 32, "num_heads": 2},
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


def abstract(name, image_size, fields):
    """The model with shapes in place of parameters."""
    return nnx.eval_shape(
        lambda: models.create(
            name, num_classes=2, image_size=image_size, rngs=nnx.Rngs(0), **fields
        )
    )


def logits(model, *size):
    """Their shape, of an image of this size; nothing is computed."""
    images = jax.ShapeDtypeStruct((1, *size, 3), np.float32)
    return nnx.eval_shape(lambda model, images: model(images), model, images).shape


@pytest.fixture(scope="module")
def made():
    return {name: abstract(name, 16, fields) for name, fields in MODELS.items()}


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
        if "ViT" in name:
            with refused("[B, 16, 16, 3]", "[1, 32, 16, 3]"):
                logits(model, 32, 16)
            with refused("[1, 17, 16, 3]"):  # a patch's rest
                logits(model, 17, 16)
        elif name == "AxialResNet-50":
            with refused("[B, 16, 16, 3]", "[1, 32, 16, 3]"):
                logits(model, 32, 16)
            assert logits(model, 15, 14) == (1, 2)  # maps as large
        else:  # a ResNet takes any
            assert logits(model, 32, 16) == (1, 2)


PLAIN = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "position_embedding": "none"}


@pytest.mark.parametrize(
    ("name", "fields", "taken", "wrong"),
    [
        ("ViT-Ti/4", PLAIN, [(16, 8), (8, 8)], [(0, 8), (9, 8)]),
        (
            "ViT-Ti/4", PLAIN | {"pool": "avg", "crop_to_patches": True},
            [(16, 8), (19, 11)], [(3, 8), (8, 2)],
        ),
        ("Axial-ViT-Ti/4", PLAIN, [(8, 16)], [(16, 8), (4, 32), (8, 8), (9, 16)]),
        ("Axial-ViT-Ti/4", PLAIN | {"crop_to_patches": True}, [(11, 19)], [(16, 8), (3, 16)]),
        (
            "AxialResNet-1-1", {"root_width": 32, "num_heads": 2},
            [(5, 13), (8, 16)], [(16, 8), (8, 17), (4, 16)],
        ),
    ],
    ids=["ViT", "ViT that crops", "Axial-ViT", "Axial-ViT that crops", "AxialResNet"],
)  # fmt: skip
def test_sizes_that_a_model_takes_beside_its_own(name, fields, taken, wrong):
    model = abstract(name, (8, 16), fields)
    for size in taken:
        assert logits(model, *size) == (1, 2)
    for size in wrong:
        with refused(f"[1, {size[0]}, {size[1]}, 3]"):
            logits(model, *size)
