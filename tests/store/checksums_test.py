import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.store import checkpoint_dir as checksums_lib
from vit_jax.store.checkpoint_dir import checksums

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "int8", "uint8", "bool", "complex64")


@pytest.fixture(autouse=True, params=[0, checksums_lib.SMALL_BYTES], ids=["devices", "host"])
def small_bytes(request, monkeypatch):
    """Both ways to compute a checksum."""
    monkeypatch.setattr(checksums_lib, "SMALL_BYTES", request.param)
    return request.param


def of(x):
    return checksums({"x": jnp.asarray(x)})["x"]


def numpy_checksum(words):
    """The documented formula, implemented again on a flat array of 32-bit words."""

    def mix(word):
        word = (word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        word = (word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return word ^ (word >> np.uint32(16))

    index = np.arange(words.size, dtype=np.uint32)
    terms = [mix(words ^ mix(index + np.uint32(seed))) for seed in checksums_lib.SEEDS]
    return "".join(f"{int(t.sum(dtype=np.uint64)) % 2**32:08x}" for t in terms)


def test_follows_the_documented_formula():
    x = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
    assert of(x) == numpy_checksum(x.ravel().view(np.uint32))
    half = x.astype(np.float16)
    assert of(half) == numpy_checksum(half.ravel().view(np.uint16).astype(np.uint32))
    # The format is fixed: existing checkpoints must stay readable.
    assert of(jnp.arange(6, dtype=jnp.int32).reshape(2, 3)) == numpy_checksum(
        np.arange(6, dtype=np.uint32)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_shows_a_change_and_an_exchange(dtype):
    x = np.zeros((4, 3), jnp.dtype(dtype))
    changed, exchanged = x.copy(), x.copy()
    changed[2, 1] = exchanged[1, 2] = 1
    assert len({of(x), of(changed), of(exchanged)}) == 3


def test_any_single_bit_shows_in_both_words():
    x = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    whole = of(x)
    for element, bit in [(0, 0), (0, 31), (63, 0), (17, 13)]:
        flipped = x.copy()
        flipped[element] ^= np.uint32(1 << bit)
        assert of(flipped)[:8] != whole[:8]
        assert of(flipped)[8:] != whole[8:]


def test_tells_apart_what_compares_equal():
    assert of(jnp.float32(0.0)) != of(jnp.float32(-0.0))
    assert of(np.array(np.nan, np.float32)) == of(np.array(np.nan, np.float32))


SHARDED = r"""
import math, re
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from vit_jax.store import checkpoint_dir as c
x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
specs = [P(), P("data"), P("model", "data"), P(("data", "model"), None), P(None, "model")]
sums = {c.checksums({"x": jax.device_put(x)})["x"]}
c.SMALL_BYTES = 0
for spec in specs:
    y = jax.device_put(x, NamedSharding(mesh, spec))
    sums |= set(c.checksums({"x": y}).values())
    text = c._words.lower(y).compile().as_text()
    # What travels between devices is at most a word per device: the partial sums.
    moved = re.findall(r"= \w+\[([\d,]*)\]\S* (all-\w+|collective-\w+)\(", text)
    assert moved or spec == P()
    for shape, op in moved:
        assert math.prod(int(n) for n in shape.split(",") if n) <= 8, (op, shape)
assert len(sums) == 1, sums
"""


@pytest.mark.parametrize("small_bytes", [0], indirect=True)
def test_sharding_changes_nothing_and_no_array_is_gathered(run_python):
    done = run_python("-c", SHARDED, devices=8)
    assert done.returncode == 0, done.stderr


def test_empty_and_scalar_arrays():
    assert of(np.zeros((0, 3), np.float32)) == "0" * 16
    assert of(jnp.int32(5)) == numpy_checksum(np.array([5], np.uint32))
