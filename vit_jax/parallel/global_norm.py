"""The norm of all gradients, each device adding up the squares of its own part."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

COPIES = ("replica", "data")  # mesh axes along which parameters are replicated


def global_norm(tree: Any, layout: Any, *, lossless_cast: bool = False) -> jax.Array:
    """sqrt(sum of squares) over all arrays of a tree, [].

    Devices that hold copies of an array share its squares among them, and then exchange one number
    for the whole tree: on 256 of them each would otherwise read all gradients once more, which
    takes as long as a quarter of an Adam update. Where parameters are sharded, each device reads
    less anyway, and the sum is a plain one.

    Args:
      tree: float32 arrays.
      layout: jax.ShapeDtypeStruct of each, nested likewise, with its sharding.
      lossless_cast: whether a layout's dtype holds all values of its array. A device's part is then
        read in that dtype: XLA would write the whole array in float32 to cut a part out of it.
    """
    placed = jax.tree.leaves(layout)
    mesh = placed[0].sharding.mesh
    copies = math.prod(mesh.shape[axis] for axis in COPIES)
    if copies == 1 or copies < mesh.size:
        return optax.tree.norm(tree)
    leaves = jax.tree.leaves(tree)
    if lossless_cast:
        leaves = [x.astype(like.dtype) for x, like in zip(leaves, placed, strict=True)]
    specs = tuple(like.sharding.spec for like in placed)

    def squares(*parts: jax.Array) -> jax.Array:
        copies = [_copies(spec, mesh.shape) for spec in specs]
        own = [_squared_sum(x, c) for x, c in zip(parts, copies, strict=True)]
        return jax.lax.psum(sum(own), mesh.axis_names)

    add = jax.shard_map(
        squares, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    return jnp.sqrt(add(*leaves))


def _copies(spec: PartitionSpec, mesh_shape: Mapping[str, int]) -> dict[str, int]:
    """The mesh axes along which an array is replicated, with their sizes."""
    taken = {
        axis for names in spec for axis in ([names] if isinstance(names, str) else names or [])
    }
    return {axis: size for axis, size in mesh_shape.items() if axis not in taken and size > 1}


def _squared_sum(x: jax.Array, copies: Mapping[str, int]) -> jax.Array:
    """[...] -> []: the sum of squares of this device's part of x, of which there are `copies`."""
    place = jax.lax.axis_index(tuple(copies)) if copies else 0
    starts, sizes = [], []
    left = math.prod(copies.values())
    for size in x.shape:  # the first axes are cut first: their parts lie together in memory
        parts = math.gcd(size, left)
        sizes.append(size // parts)
        starts.append(place % parts * sizes[-1])
        place, left = place // parts, left // parts
    part = jax.lax.dynamic_slice(x, starts, sizes).astype(jnp.float32)
    total = jnp.sum(jnp.square(part))
    # What cannot be cut any further counts once.
    return total if left == 1 else jnp.where(place == 0, total, 0.0)
