import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums in another order
TINY = {"units": (1, 2), "root_width": 32}


def build(**fields):
    arguments = {"num_classes": 5, "image_size": 16, "rngs": nnx.Rngs(0)} | TINY | fields
    return models.create("R50x1", **arguments)


def outputs(model, images, layers=()):
    """(logits, features, tokens, tokens after `layers`), from one program."""

    def run(m, x):
        return m(x), m.features(x), m.tokens(x), m.tokens(x, layers=layers)

    return nnx.jit(run)(model, images)


def test_tokens_features_and_logits_fit_together(drawn):
    model, images = drawn(build), jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    logits, features, tokens, (_, last) = outputs(model, images, layers=(0, 2))
    assert tokens.shape == (2, 4, 256)
    assert float(tokens.min()) == 0  # after a relu
    np.testing.assert_allclose(features, np.mean(tokens, axis=1), atol=ROUNDING)
    expected = features @ model.head.kernel[...] + model.head.bias[...]
    np.testing.assert_allclose(logits, expected, rtol=ROUNDING, atol=1e-4)
    normed = jax.nn.relu(model.norm(last.reshape(2, 2, 2, 256))).reshape(tokens.shape)
    np.testing.assert_allclose(normed, tokens, atol=ROUNDING)


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
