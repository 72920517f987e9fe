"""Axial-ViTs; tests/models/observe compares what they compute with float64 NumPy."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.models.by_hand import info
from vit_jax import models

pytestmark = pytest.mark.usefixtures("quick_compilation")
TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2}
NAMES = [name for name in models.available() if models.kind(name) == "An Axial-ViT"]


def toy(**fields):
    arguments = {"num_classes": 5, "image_size": (8, 12), "rngs": nnx.Rngs(0)} | TOY | fields
    return models.create("Axial-ViT-Ti/4", **arguments)


def random_images(*shape):
    return jax.random.normal(jax.random.key(0), shape)


def test_names():
    assert NAMES == ["Axial-ViT-B/16", "Axial-ViT-B/32"]
    spec = models.spec("Axial-ViT-12x512/8")
    assert (spec.depth, spec.width, spec.patch_size, spec.pool) == (12, 512, 8, "avg")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_a_vit_with_twice_the_blocks_and_no_class_token(name):
    plain = name.removeprefix("Axial-")
    twice = info(plain, pool="avg", depth=24).parameters
    assert info(name).parameters == twice
    d = 768
    block = 4 * (d * d + d) + 2 * 4 * d * d + 4 * d + d + 4 * d
    assert twice - info(plain).parameters == 12 * block - 2 * d  # the token, and its position


def _first_layer(block):
    graph, state = nnx.split(block)
    return graph, jax.tree.map(lambda x: x[0], state)


def test_stochastic_depth_drops_whole_examples():
    """A branch of an image is dropped in all of its rows and columns."""
    graph, state = _first_layer(nnx.jit(lambda: toy(depth=1, stochastic_depth=0.5))().blocks.block)
    x = random_images(16, 6, 16)
    run = lambda x: nnx.merge(graph, state)(x, jax.random.key(0), jnp.float32(0.8))
    y = jax.jit(run)(x)
    same = (y == x).all(axis=2)
    assert (same.all(axis=1) == same.any(axis=1)).all() and 0 < same[:, 0].sum() < 16
