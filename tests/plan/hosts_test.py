"""By hand, for 16 chips of TPU v5e on 4 hosts; on devices that only say so."""

import math
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax.plan import hosts

DEVICES = [types.SimpleNamespace(process_index=i // 4) for i in range(16)]


class Sharding:
    """Like a NamedSharding over DEVICES: an array in `parts` along its first axis."""

    device_set = DEVICES

    def __init__(self, parts):
        self.parts = parts

    def shard_shape(self, shape):
        return (shape[0] // self.parts, *shape[1:]) if shape else ()

    def devices_indices_map(self, shape):
        size, alike = shape[0] // self.parts, len(DEVICES) // self.parts
        return {
            Key(device): (slice(i // alike * size, (i // alike + 1) * size),)
            for i, device in enumerate(DEVICES)
        }


class Key:
    """A device as the key of a dictionary."""

    def __init__(self, device):
        self.process_index = device.process_index


def array(*shape, parts, dtype=jnp.float32):
    made = types.SimpleNamespace(shape=shape, dtype=jnp.dtype(dtype), sharding=Sharding(parts))
    made.size = math.prod(shape)
    return made


@pytest.mark.parametrize(
    ("shape", "parts", "copied"),
    [
        ((160, 10), 16, 6400 // 4),  # every host its part
        ((160, 10), 1, 6400 // 4),  # all have all, and share the work
        ((150, 10), 1, 6000),  # cannot be shared evenly: one copies all
        ((160, 10), 4, 6400 // 4),
        ((), 1, 4),
    ],
)
def test_what_a_host_copies(shape, parts, copied):
    state = [array(*shape, parts=parts)]
    batch = {"weight": array(32, parts=16)}
    layout = types.SimpleNamespace(state=state)
    assert hosts.needs(layout, batch).saving_bytes == round(1.27 * copied)


@pytest.mark.parametrize(("parts", "images"), [(16, 8), (4, 8), (2, 16), (1, 32)])
def test_what_a_host_reads(parts, images):
    batch = {
        "image": array(32, 8, 8, 3, parts=parts, dtype=jnp.uint8),
        "weight": array(32, parts=parts),
    }
    found = hosts.needs(types.SimpleNamespace(state=[]), batch)
    assert found.images == images
    assert found.input_bytes == 4 * images * (8 * 8 * 3 + 4 + 8)


def test_of_the_devices_here():
    mesh = jax.make_mesh((1,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, P("data"))
    make = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    found = hosts.needs(types.SimpleNamespace(state=[make(10)]), {"weight": make(6)})
    assert found == hosts.HostNeeds(images=6, input_bytes=4 * 6 * 12, saving_bytes=round(1.27 * 40))
