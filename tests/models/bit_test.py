import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vit_jax import models

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
TINY = {"units": (1, 2), "root_width": 32}


def build(**fields):
    arguments = {"num_classes": 5, "image_size": 16, "rngs": nnx.Rngs(0)} | TINY | fields
    return models.create("R50x1", **arguments)


def test_constants_of_the_ports_are_fields(drawn):
    images = jax.random.normal(jax.random.key(0), (1, 16, 16, 3))

    def tokens(**fields):
        model = drawn(lambda: build(units=(1,), **fields))
        return nnx.jit(lambda m, x: m.tokens(x))(model, images)

    own, other = tokens(), tokens(weight_epsilon=1e-3, group_norm_epsilon=0.1)
    assert float(jnp.abs(own - other).max()) > 1e-3


def test_the_head_starts_at_zero():
    head = nnx.jit(lambda: build(head_bias=-10.0).head)()
    assert not head.kernel[...].any()
    assert (head.bias[...] == -10).all()
