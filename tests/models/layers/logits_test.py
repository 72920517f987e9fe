"""A field of attention's logits is a class and a line of a table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.nn import initializers

from tests.messages import refused
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.axes import HEADS
from vit_jax.models.layers.block import Block
from vit_jax.models.layers.linear import param
from vit_jax.models.layers.logits import TRANSFORMS
from vit_jax.models.vit import ViT, ViTSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")
SIZES = {"width": 12, "mlp_dim": 8, "depth": 2, "num_heads": 3}
SCALE = "blocks/block/attention/logits/head_scale/scale"


@pytest.fixture
def images():
    return jax.random.normal(jax.random.key(1), (2, 8, 8, 3))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithHeadScale(ViTSpec):
    head_scale: float = 0.0


def multiply(logits, factors):
    return logits * factors.astype(logits.dtype)


class HeadScale(nnx.Module):
    def __init__(self, spec, *, rngs):
        init = initializers.constant(spec.head_scale)
        self.scale = param(init, (spec.num_heads,), (HEADS,), rngs.params())

    def __call__(self):
        return multiply, self.scale[...][:, None, None]


@pytest.fixture
def make(monkeypatch):
    """`make(head_scale=2.0, ...)`: a small ViT."""
    monkeypatch.setitem(TRANSFORMS, "head_scale", HeadScale)

    def make(**changes):
        plain = models.spec("ViT-Ti/4", **SIZES)
        spec = WithHeadScale(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
        spec = dataclasses.replace(spec, **changes)
        spec.check()
        preprocess = models.Preprocess((8, 8), (8, 8))
        size = {"num_classes": 0, "image_size": (8, 8)}  # features: a fresh head gives zeros
        return ViT(spec, **size, preprocess=preprocess, rngs=nnx.Rngs(0))

    return make


def gradients(model, images):
    graph, params = nnx.split(model)
    loss = lambda params: jnp.sum(nnx.merge(graph, params)(images) ** 4)
    value, grads = jax.value_and_grad(loss)(params)
    return value, pytrees.flatten(nnx.to_pure_dict(grads))


def test_a_learned_factor_of_each_head(make, images):
    """Equal to queries multiplied by it, for the first tokens alone too."""
    model, plain = make(head_scale=2.0), make(head_scale=1.0)
    plain.blocks.block.attention.qkv.kernel[...] *= jnp.array([2.0, 1, 1])[:, None, None]
    plain.blocks.block.attention.qkv.bias[...] *= jnp.array([2.0, 1, 1])[:, None, None]
    np.testing.assert_allclose(model(images), plain(images), atol=1e-6)
    np.testing.assert_allclose(model.of_all_tokens(images), plain(images), atol=1e-6)


def test_its_gradient_is_the_same_in_a_scan(make, images):
    for fields in ({}, {"position_embedding": "relative_2d", "logit_cap": 2.0}):
        (value, grads), (again, scanned) = (
            gradients(make(head_scale=1.5, scan=scan, **fields), images) for scan in (False, True)
        )
        assert grads[SCALE].shape == (2, 3) and grads[SCALE].all()
        np.testing.assert_allclose(value, again, rtol=1e-5)
        np.testing.assert_allclose(grads[SCALE], scanned[SCALE], rtol=1e-3, atol=1e-7)


def test_they_act_in_the_order_of_the_table(make):
    spec = make(head_scale=2.0, logit_cap=1.0).spec
    attention = nnx.merge(*nnx.split(Block(spec, rngs=nnx.Rngs(0)).attention))
    transforms = attention.project(jnp.ones((1, 2, spec.width))).transforms
    assert [t.name for t in transforms] == list(TRANSFORMS) == ["logit_cap", "head_scale"]


def test_without_it_nothing_is_made(make):
    assert SCALE not in pytrees.flatten(nnx.to_pure_dict(nnx.state(make(), nnx.Param)))


def test_kernels_that_do_not_take_it(make):
    with refused("model.attention=splash", "model.head_scale"):
        make(head_scale=2.0, attention="splash")
