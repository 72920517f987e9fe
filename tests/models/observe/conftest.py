"""Small ViTs with random parameters."""

import pytest
from flax import nnx

from tests.models.observe.toys import SIZE
from vit_jax import models

TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2}


@pytest.fixture
def toy(drawn):
    """`toy(pool="map")`: a ViT with random parameters, small enough that nothing saturates."""

    def make(name="ViT-Ti/4", **fields):
        arguments = {"num_classes": 5, "image_size": SIZE} | TOY | fields
        model = drawn(lambda: models.create(name, rngs=nnx.Rngs(0), **arguments))
        for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            if path[-1] == "kernel":
                value[...] = 0.3 * value[...]
        return model

    return make
