"""The kernel as Pallas interprets it on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.layers.kernels.xla_test import ROUNDING, assert_close, outputs_and_gradients
from vit_jax.models.layers.kernels import fused
from vit_jax.models.layers.kernels.xla import attend

pytestmark = pytest.mark.usefixtures("quick_compilation")


def plain(*qkv):
    return attend(*qkv, jnp.dtype("float32"))


# Head sizes of Ti to L, So400m, H, g and G; numbers of heads that an instance takes in parts.
@pytest.mark.parametrize(
    ("dtype", "tokens", "num_heads", "head_size"),
    [
        ("float32", 17, 3, 64),
        ("bfloat16", 17, 9, 80),
        ("float32", 5, 2, 72),
        ("float32", 5, 1, 88),
        ("float32", 5, 1, 104),
    ],
)
def test_equals_the_plain_program(dtype, tokens, num_heads, head_size):
    of = lambda f: outputs_and_gradients(f, dtype, tokens, num_heads, head_size)
    assert_close(of(fused.attend), of(plain), ROUNDING[dtype])


@pytest.mark.parametrize("num_heads", [3, 9])
def test_one_array_of_queries_keys_and_values_is_the_same(num_heads):
    """9 heads: an instance takes 3 of them."""
    joint = lambda *qkv: fused.attend_joint(jnp.stack(qkv, axis=2))
    of = lambda f: outputs_and_gradients(f, "float32", 5, num_heads, 8)
    for a, b in zip(of(joint), of(fused.attend), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tokens", [256, 300])
def test_blocks_of_queries_add_up(tokens, monkeypatch):
    """Interpreted, what lies behind the last query is NaN, as it may be on a TPU."""
    monkeypatch.setattr(fused, "MOST_QUERIES", 128)
    monkeypatch.setattr(fused, "BLOCKS", (128,))
    of = lambda f: outputs_and_gradients(f, "float32", tokens, num_heads=2)
    assert_close(of(fused.attend), of(plain), ROUNDING["float32"])


DIVIDED = """
import jax
import jax.numpy as jnp
from tests.models.layers.kernels.xla_test import ROUNDING, assert_close, outputs_and_gradients
from tests.models.layers.kernels.fused_test import plain
from vit_jax.core import axes
from vit_jax.models.layers.kernels import fused
from vit_jax.parallel import mesh as meshes

of = lambda f: outputs_and_gradients(f, "float32", tokens=5, num_heads=4)
with jax.set_mesh(meshes.make_mesh(replica=1, data=2, fsdp=1, tensor=2)):
    with axes.use_rules(meshes.RULES):
        y, *gradients = of(fused.attend)
        joint = of(lambda *qkv: fused.attend_joint(jnp.stack(qkv, axis=2)))
assert y.sharding.shard_shape(y.shape) == (1, 5, 2, 8), y.sharding
assert_close((y, *gradients), of(plain), ROUNDING["float32"])
assert_close(joint, of(plain), ROUNDING["float32"])
"""


def test_each_device_has_its_images_and_heads(run_python):
    done = run_python("-c", DIVIDED, devices=4)
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_but_the_projections_is_kept():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 8))
    saved = jax.tree.leaves(jax.vjp(fused.attend, query, key, value)[1])
    kept = [x for x in saved if isinstance(x, jax.Array) and x.size > 1]
    for x, y in zip(kept, (query, key, value), strict=True):
        np.testing.assert_array_equal(x, y)
