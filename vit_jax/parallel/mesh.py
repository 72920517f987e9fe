"""The device mesh, and the one table from logical axes to mesh axes.

    replica   slices of a pod, joined by the data-centre network: full copies of the axes below
    data      the parameters of a step are replicated, on different examples
    fsdp      the width of the parameters is sharded, and so are the examples
    tensor    heads, the MLP's hidden layer and the channels inside a ResNet's units are sharded;
              the examples are not

Data-parallel, fully sharded, hybrid and tensor-parallel training differ only in these four sizes
(docs/sharding.md).
"""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.core import axes, errors, machine

AXES = ("replica", "data", "fsdp", "tensor")
BATCH_AXES = ("replica", "data", "fsdp")

RULES: axes.Rules = dict.fromkeys(axes.LOGICAL_AXES, ()) | {
    axes.BATCH: BATCH_AXES,
    axes.WIDTH: ("fsdp",),
    axes.HEADS: ("tensor",),
    axes.MLP: ("tensor",),
    axes.CHANNELS: ("tensor",),
}
# For matrices of a state that is sharded further than a step's parameters (parallel/zero1.py): each
# device along `data` keeps, and updates, its own shard.
SHARDED_STATE_RULES: axes.Rules = {
    **RULES,
    axes.WIDTH: ("fsdp", "data"),
    axes.MLP: ("tensor", "data"),
}
# For programs in which every device along `tensor` computes the same, in whole.
UNDIVIDED_RULES: axes.Rules = {
    name: tuple(axis for axis in over if axis != "tensor") for name, over in RULES.items()
}


def make_mesh(
    *, replica: int, data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh with axes AXES of these sizes, one of which may be -1: all remaining devices.

    devices: default: all devices. A single process may leave some of them unused. Raises
    UserError for sizes that do not fit them.
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = {"replica": replica, "data": data, "fsdp": fsdp, "tensor": tensor}
    shape = _shape(sizes, len(available), may_leave=jax.process_count() == 1 and devices is None)
    used = available[: math.prod(shape)]
    slices = {getattr(d, "slice_index", 0) for d in used}
    if len(slices) > 1 and shape[0] != len(slices):
        raise errors.UserError(
            f"mesh.replica={shape[0]}, but there are {len(slices)} slices: set "
            f"mesh.replica={len(slices)}."
        )
    # Neighbours in the chips' network are neighbours in the grid.
    if len(slices) > 1:
        inside, between = (1, *shape[1:]), (len(slices), 1, 1, 1)
        grid = mesh_utils.create_hybrid_device_mesh(
            inside, between, used, allow_split_physical_axes=True
        )
    else:
        grid = mesh_utils.create_device_mesh(shape, used, allow_split_physical_axes=True)
    # Auto: with Explicit axes, JAX's default, an ordinary model fails to trace.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _shape(sizes: Mapping[str, int], there: int, *, may_leave: bool) -> tuple[int, ...]:
    """Fills in -1 among the mesh's sizes. UserError if they do not fit."""
    said = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items() if size != 1)
    rest = list(sizes.values()).count(-1)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    may_differ = fixed <= there and (may_leave or fixed == there)
    fits = there % fixed == 0 if rest and fixed else may_differ
    if min(sizes.values()) < -1 or 0 in sizes.values() or rest > 1 or not fits:
        products = ", ".join(str(n) for n in range(1, there + 1) if there % n == 0)
        raise errors.UserError(
            f"{said or 'mesh.data=1'} does not divide {there} devices; axes may be {products}, or "
            "one -1."
        )
    return tuple(there // fixed if size == -1 else size for size in sizes.values())


def unused(mesh: Mesh) -> str:
    """A note such as " (5 of 8 unused: mesh.data=-1 takes all)"; "" for a mesh of all devices."""
    there = jax.device_count()
    if mesh.size == there:
        return ""
    all_ = ": mesh.data=-1 takes all" if there % (mesh.size // mesh.shape["data"]) == 0 else ""
    return f" ({there - mesh.size} of {there} unused{all_})"


def sharding(
    mesh: Mesh, names: Sequence[str | None], shape: Sequence[int], rules: axes.Rules = RULES
) -> NamedSharding:
    """The sharding of an array of this shape whose axes have these logical names."""
    return NamedSharding(mesh, axes.to_spec(names, shape, rules, mesh.shape))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def param_shardings(variables: nnx.State, mesh: Mesh, rules: axes.Rules = RULES) -> Any:
    """Shardings of a model's parameters, as a plain nested dictionary; vectors follow RULES."""

    def place(v: nnx.Param) -> NamedSharding:
        names = v.get_metadata()["axes"]
        return sharding(mesh, names, v.shape, rules if _is_matrix(names) else RULES)

    return nnx.to_pure_dict(
        jax.tree.map(place, variables, is_leaf=lambda x: isinstance(x, nnx.Param))
    )


def _is_matrix(names: Sequence[str]) -> bool:
    return len(names) - (axes.LAYERS in names) > 1


def param_layout(variables: nnx.State, mesh: Mesh, rules: axes.Rules = RULES) -> Any:
    """Shapes, dtypes and shardings of the parameters, as a plain nested dictionary."""
    return jax.tree.map(
        lambda v, s: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=s),
        nnx.to_pure_dict(variables),
        param_shardings(variables, mesh, rules),
    )


def unsharded_params(
    variables: nnx.State, mesh: Mesh, rules: axes.Rules
) -> dict[axes.UnshardedAxis, list[str]]:
    """Axes that are sharded less than the rules say, with the parameters that have them."""
    causes: dict[axes.UnshardedAxis, list[str]] = {}
    for path, param in nnx.to_flat_state(variables):
        names = param.get_metadata()["axes"]
        own = rules if _is_matrix(names) else RULES
        for cause in axes.unsharded(names, param.shape, own, mesh.shape):
            causes.setdefault(cause, []).append("/".join(map(str, path)))
    return causes


def check_batch(mesh: Mesh | AbstractMesh, batch_size: int, field: str, *, parts: int = 1) -> None:
    """Raises UserError unless a batch, and each of its `parts`, divides over the devices."""
    n = axes.num_devices(BATCH_AXES, mesh.shape)
    unit = n * parts
    if batch_size < 1 or batch_size % unit:
        below = batch_size // unit * unit
        near = ", ".join(str(b) for b in (below, below + unit) if b > 0)
        over = [f"{name}={mesh.shape[name]}" for name in BATCH_AXES if mesh.shape[name] > 1]
        which = f" ({' x '.join(over)})" if len(over) > 1 else ""
        times = f" times optim.grad_accum_steps={parts} parts" if parts > 1 else ""
        raise errors.UserError(
            f"{field}={batch_size} does not divide over {n} devices{which}{times}; nearest: {near}."
        )


HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"
MEMORY_SHARE = 4  # copies of the weights may take one part in so many of the memory


def use_cores_as_devices(weights_bytes: int) -> None:
    """Makes a CPU as many devices as this process may use cores; to be called before any is used.

    Fewer where a copy of the weights on each would fill the memory. Where JAX is told how many, by
    XLA_FLAGS or its own settings, that holds.
    """
    told = getattr(jax.config, "jax_num_cpu_devices", -1) > 0
    if told or HOST_DEVICES_FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    fit = machine.memory_bytes() // MEMORY_SHARE // max(weights_bytes, 1)
    with contextlib.suppress(RuntimeError):  # in a process that has used its devices already
        jax.config.update("jax_num_cpu_devices", max(1, min(machine.cores(), fit)))
