"""cuDNN's arguments: with JAX's own implementation of the same function in its place."""

import jax
import jax.numpy as jnp
import numpy as np
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


def far_below_zero(tokens):
    """Queries, keys and values, all of whose logits are about -120; bfloat16 [2, N, 3, 64]."""
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, tokens, 3, 64))
    query, key = query / 10, key / 10
    query[..., 0], key[..., 0] = 1, -120 * 8
    return [jnp.asarray(x, jnp.bfloat16) for x in (query, key, value)]


def test_half_filled_tiles_get_logits_around_zero(monkeypatch):
    """Logits whose gradient cuDNN computes as NaN; JAX's own attention is in its place."""
    taken = []

    def attention(query, key, *others, **arguments):
        taken.append(jnp.einsum("bqhk,bshk->bhqs", query, key) * arguments["scale"])
        return jax.nn.dot_product_attention(query, key, *others, **arguments, implementation="xla")

    monkeypatch.setattr(cudnn, "_attention", attention)
    arrays = far_below_zero(64)
    cudnn.attend(*arrays)
    assert jnp.abs(taken[0]).max() < 5
    check_gradients(arrays)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU")
@pytest.mark.parametrize("tokens", [63, 64, 65, 128, 192, 196, 197, 576, 577])
def test_gradients_are_finite_on_a_gpu(tokens):
    check_gradients(far_below_zero(tokens))


def check_gradients(arrays):
    """Gradients of all three against those of float32."""

    def of(attend, dtype):
        f = lambda *x: jnp.sum(jnp.sin(attend(*x).astype(jnp.float32) * 3))
        return jax.jit(jax.grad(f, argnums=(0, 1, 2)))(*(x.astype(dtype) for x in arrays))

    ours = of(cudnn.attend, jnp.bfloat16)
    wanted = of(lambda q, k, v: plain(q, cudnn.centred(k), v), jnp.float32)
    for x, y in zip(ours, wanted, strict=True):
        assert jnp.isfinite(x).all()
        # The first channel of a query's gradient is a sum of zero times -960.
        error = (x - y)[..., 1:]
        assert jnp.linalg.norm(error) < 0.02 * jnp.linalg.norm(y[..., 1:])
