"""Bytes that a mesh's devices must send each other in a step, from its arrays' shardings.

    all-gather  of parameters over `fsdp`: each device computes with whole ones
    reduce      of gradients over the axes that divide the batch: all-reduced, or reduce-scattered
                over those that divide the parameter in the state
    all-gather  of parameters over `data`, where the state is sharded over it (ZeRO stage 1)
    reduce      of activations over `tensor`: two sums forward and two backward in a block

`vit_jax/tools/plan/hlo.py` reads the same from a compiled program; a test compares them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from vit_jax.core import axes, pytrees
from vit_jax.core.pytrees import is_stacked
from vit_jax.parallel.mesh import BATCH_AXES

SMALLEST_BYTES = 2**20  # smaller arrays are left out: norms, biases, scalars


class Transfer(NamedTuple):
    """One kind of traffic.

    Attributes:
      what: "parameters", "gradients" or "activations".
      kind: "all-gather", or "reduce" for all-reduce and reduce-scatter.
      axes: mesh axes that it is sent along.
      total_bytes: bytes per step, of whole arrays: what a device gathers or reduces.
    """

    what: str
    kind: str
    axes: tuple[str, ...]
    total_bytes: int


def parameter_traffic(
    params: Any,
    update_shardings: Any,
    *,
    compute_bytes: Callable[[str], int],
    gradient_bytes: Callable[[str], int],
    gathers: int,
    grad_accum_steps: int,
) -> list[Transfer]:
    """Transfers of parameters and gradients.

    Args:
      params: pytree of jax.ShapeDtypeStruct with shardings (StateLayout.computed).
      update_shardings: a matching pytree (StateLayout.update_shardings).
      compute_bytes: bytes per element, by parameter name, in the product that uses it.
      gradient_bytes: bytes per element of its gradient when it leaves the product.
      gathers: of a block's parameters: 2 if the backward pass gathers them again, 1 if they stay in
        memory, as those outside the blocks do.
      grad_accum_steps: number of microbatches.
    """
    shardings = pytrees.flatten(update_shardings)
    return [
        transfer
        for name, param in pytrees.flatten(params).items()
        for transfer in _of_parameter(
            param,
            shardings[name],
            layers=param.shape[0] if is_stacked(name) else 1,
            compute_bytes=compute_bytes(name),
            gradient_bytes=gradient_bytes(name),
            gathers=gathers if is_stacked(name) else 1,
            grad_accum_steps=grad_accum_steps,
        )
    ]


def activation_traffic(
    mesh_shape: Any, *, stream_bytes: int, depth: int, sums: int
) -> list[Transfer]:
    """Transfers of tensor parallelism: sums of the parts of [B, N, D] that heads and MLP give.

    Args:
      mesh_shape: sizes of the mesh's axes.
      stream_bytes: size of the residual stream [B, N, D] on one device.
      depth: number of blocks.
      sums: per block: 4, or 5 where the backward pass recomputes the block.
    """
    if mesh_shape["tensor"] == 1:
        return []
    return [Transfer("activations", "reduce", ("tensor",), depth * sums * stream_bytes)]


def _of_parameter(
    param: Any,
    update_sharding: NamedSharding,
    *,
    layers: int,
    compute_bytes: int,
    gradient_bytes: int,
    gathers: int,
    grad_accum_steps: int,
) -> list[Transfer]:
    mesh_shape = update_sharding.mesh.shape
    own, updated = _dividing(param.sharding), _dividing(update_sharding)
    # One layer, as a device holds it while computing: only `tensor` divides it.
    whole = math.prod(param.shape) // layers // axes.num_devices(own & {"tensor"}, mesh_shape)
    transfers: list[Transfer] = []

    def add(what: str, kind: str, along: set[str], elements: int, size: int, runs: int) -> None:
        names = tuple(a for a in mesh_shape if a in along and mesh_shape[a] > 1)
        if names and elements * size >= SMALLEST_BYTES:
            transfers.append(Transfer(what, kind, names, layers * runs * elements * size))

    # XLA all-reduces a whole gradient where `tensor` divides the mesh but not the parameter.
    is_whole = mesh_shape["tensor"] > 1 and "tensor" not in own
    scattered, batch = set() if is_whole else updated - {"tensor"}, set(BATCH_AXES)
    part = whole // axes.num_devices(scattered, mesh_shape)
    add(
        "parameters", "all-gather", own & {"fsdp"}, whole, compute_bytes, gathers * grad_accum_steps
    )
    held = whole // axes.num_devices(own & {"fsdp"}, mesh_shape)
    add("parameters", "all-gather", updated - own, held, compute_bytes, 1)
    add("gradients", "reduce", scattered, whole, gradient_bytes, grad_accum_steps)
    add("gradients", "reduce", batch - scattered, part, gradient_bytes, grad_accum_steps)
    return transfers


def _dividing(sharding: NamedSharding) -> set[str]:
    """Mesh axes that divide an array with this sharding."""
    several = lambda entry: (entry,) if isinstance(entry, str) else entry
    return {name for entry in sharding.spec if entry for name in several(entry)}
