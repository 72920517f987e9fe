"""cuDNN's arguments: with JAX's own implementation of the same function in its place."""

import jax
import jax.numpy as jnp
import pytest

from tests.models.layers.kernels.fused_test import plain
from tests.models.layers.kernels.xla_test import ROUNDING, assert_close, outputs_and_gradients
from vit_jax.models.layers.kernels import cudnn
from vit_jax.models.layers.kernels.xla import MIXED, STATISTICS

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("dtype", "tokens", "head_size"), [("float32", 8, 8), ("float32", 5, 10), ("bfloat16", 5, 8)]
)
def test_padding_changes_nothing(dtype, tokens, head_size, monkeypatch):
    taken = []

    def attention(query, *others, **arguments):
        taken.append(query.shape)
        return jax.nn.dot_product_attention(query, *others, **arguments, implementation="xla")

    monkeypatch.setattr(cudnn, "_attention", attention)
    of = lambda f: outputs_and_gradients(f, dtype, tokens, 2, head_size)
    assert_close(of(cudnn.attend), of(plain), ROUNDING[dtype])
    assert set(taken) == {(2, tokens, 2, 8 if head_size == 8 else 16)}


def traced(tokens, **options):
    x = jnp.zeros((2, tokens, 3, 64), jnp.bfloat16)
    f = lambda *arrays: jnp.sum(cudnn.attend(*arrays).astype(jnp.float32))
    return jax.make_jaxpr(jax.grad(jax.checkpoint(f, **options)))(x, x, x)


def count(program, name):
    return str(program).count(f"{name}[")


@pytest.mark.parametrize("tokens", [196, 197])
def test_cudnn_takes_it_for_training_without_a_gpu(tokens):
    """JAX would refuse odd lengths; and a policy that keeps its results runs it once."""
    forward, backward = (f"dot_product_attention_{way}_wrapper" for way in ("fwd", "bwd"))
    kept = jax.checkpoint_policies.save_only_these_names(MIXED, STATISTICS)
    for policy, times in ((kept, 1), (None, 2)):
        program = traced(tokens, policy=policy)
        assert (count(program, forward), count(program, backward)) == (times, 1)
