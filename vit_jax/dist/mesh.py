"""The mesh of devices, and the one table from logical axes to its axes."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.core import axes, errors

# The examples of a batch are divided over `data`; every parameter is on every device.
RULES: axes.Rules = {name: None for name in axes.LOGICAL_AXES} | {axes.BATCH: "data"}


def make_mesh(*, data: int) -> Mesh:
    """A mesh with the axis `data`; -1: all devices. UserError for more devices than there are."""
    there = len(jax.devices())
    count = there if data == -1 else data
    if not 1 <= count <= there:
        raise errors.UserError(
            f"mesh.data={data}, but there are {there} devices: give 1 to {there}, or -1 for all."
        )
    # Auto: with Explicit axes, jax's default, an ordinary model fails to trace.
    return jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=jax.devices()[:count])


def sharding(mesh: Mesh, names: tuple[str | None, ...]) -> NamedSharding:
    """Of an array whose axes have these logical names."""
    return NamedSharding(mesh, axes.to_spec(names, RULES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch(mesh: Mesh, batch_size: int, field: str) -> None:
    """UserError unless a batch divides over the devices."""
    n = mesh.shape["data"]
    if batch_size < 1 or batch_size % n:
        below = batch_size // n * n
        near = ", ".join(str(b) for b in (below, below + n) if b > 0)
        raise errors.UserError(
            f"{field}={batch_size} does not divide over {n} devices; nearest: {near}."
        )
