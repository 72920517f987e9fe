"""Low-rank adapters (LoRA, arXiv 2106.09685) of a model's kernels.

An adapter adds scale * A B to a kernel; A and B, `lora_a` and `lora_b` beside the kernel, are
narrow. Where patterns are of some of the layers or projections only, all have adapters, and those
of the others stay zero (optim/patterns.py). Checkpoints have kernels and adapters, and are read
with these merged (weights/loading.py).
"""

import math
import zlib

import jax
from flax import nnx

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.nn.linear import Linear
from vit_jax.optim.patterns import Adapters, adapted

MOST_LISTED = 12  # names of kernels in a message


def add(model: nnx.Module, adapters: Adapters, rngs: nnx.Rngs) -> nnx.Module:
    """The model, with an adapter beside each kernel that the patterns match.

    The other parameters are as without adapters. Raises UserError for a pattern that matches no
    kernel of a dense layer, and for a rank above what a kernel of this shape can have.
    """
    linears = {
        "/".join((*map(str, path), "kernel")): module
        for path, module in nnx.iter_graph(model)
        if isinstance(module, Linear)
    }
    chosen: set[str] = set()
    for pattern in adapters.kernels:
        matched = {n for n, x in linears.items() if adapted(pattern, n, x.kernel.shape).any()}
        if not matched:
            some = ", ".join(sorted(linears)[:MOST_LISTED])
            raise UserError(
                f"lora.kernels: {pattern!r} matches no kernel of a dense layer. It has to match a "
                f"whole name; here {some}. {nearest(pattern, linears)}"
            )
        chosen |= matched
    key = rngs.params()
    for name in sorted(chosen):
        _check_rank(name, linears[name], adapters.rank)
        own = jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
        linears[name].add_adapter(adapters.rank, adapters.scale, own)
    return model


def _check_rank(name: str, linear: Linear, rank: int) -> None:
    """UserError if a product of this rank would be no smaller than the kernel."""
    shape = linear.kernel.shape[int(pytrees.is_stacked(name)) :]
    inputs, outputs = shape[: linear.contracted], shape[linear.contracted :]
    if linear.has_projections:
        outputs = outputs[1:]
    most = min(math.prod(inputs), math.prod(outputs))
    if rank > most:
        raise UserError(
            f"lora.rank={rank} is more than {name} can have, a matrix of {math.prod(inputs)} x "
            f"{math.prod(outputs)}: give at most {most}; 4 to 16 are usual. Or leave it out of "
            "lora.kernels."
        )
