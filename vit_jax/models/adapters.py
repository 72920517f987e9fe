"""Low-rank adapters (LoRA, arXiv 2106.09685) of a model's kernels.

An adapter adds scale * A B to a kernel; A and B, `lora_a` and `lora_b` beside the kernel, are
narrow. Where patterns are of some of the layers or projections only, all have adapters, and those
of the others stay zero (learning/optim/patterns.py). Checkpoints have kernels and adapters, and
are read with these merged (weights/loading.py).
"""

import math
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.pytrees import PROJECTIONS, is_stacked, layer_name
from vit_jax.models.layers.linear import Linear

MOST_LISTED = 12  # names of kernels in a message
# A part of a name that is FIRST-LAST; or a class of characters, which is left as it is.
_RANGE = re.compile(r"\[[^]]*\]|(?<![^/(|])(\d{1,3})-(\d{1,3})(?![^/)|])")


def compile_pattern(pattern: str, field: str) -> Callable[..., bool]:
    """Returns a function of a parameter's names, one or more; a UserError names `field`.

    A pattern is a regular expression that has to match a whole name. One without any sign of these,
    such as `head` or `blocks/0-5`, is a name or the beginning of names, up to a slash. In both 0-5,
    between slashes or alternatives, is any of these numbers. One of the names has to match; by a
    pattern that excludes, `(?!head/|blocks/8-11/).*`, all of them.
    """
    for first, last in _RANGE.findall(pattern):
        if first and int(first) > int(last):
            raise UserError(f"{field}: {pattern!r}: write {last}-{first}.")
    expression = _RANGE.sub(_any_number, pattern)
    if re.fullmatch(r"[\w/-]+", pattern):
        expression += "(?:/.*)?"
    try:
        matches = re.compile(expression).fullmatch
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"{field}: {pattern!r} is not a regular expression: {error}.") from error
    combine = all if "(?!" in pattern else any
    return lambda *names: combine(matches(name) for name in names)


def _any_number(found: re.Match[str]) -> str:
    first, last = found.groups()
    if first is None:
        return found[0]
    return f"(?:{'|'.join(map(str, range(int(first), int(last) + 1)))})"


class Adapters(NamedTuple):
    """Low-rank adapters (arXiv 2106.09685), and what else is trained."""

    # Patterns of the kernels that have one. Of projections side by side each has its own, and a
    # name: `.../attention/query/kernel` is a part of `.../attention/qkv/kernel`.
    kernels: tuple[str, ...]
    rank: int  # of every adapter
    alpha: float  # an adapter's product is multiplied by alpha / rank
    train: tuple[str, ...]  # patterns of other parameters that are trained

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / self.rank


def adapted(pattern: str, kernel: str, shape: tuple[int, ...]) -> np.ndarray:
    """bool [L, n]: which parts of a kernel a pattern of Adapters matches.

    L layers, 1 if it is not stacked, and n projections side by side, 1 if it is one. `kernel` is
    its name, `shape` its shape.
    """
    matches = compile_pattern(pattern, "lora.kernels")
    *above, parent, last = kernel.split("/")
    projections = PROJECTIONS.get(parent, (parent,))
    names = [{kernel, "/".join((*above, projection, last))} for projection in projections]
    if not is_stacked(kernel):
        return np.array([[matches(*either) for either in names]])
    return np.array(
        [
            [matches(*either, *(layer_name(name, i) for name in either)) for either in names]
            for i in range(shape[0])
        ]
    )


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
                f"lora.kernels: {pattern!r} matches no dense kernel, as {some}. "
                f"{nearest(pattern, linears)}"
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
        raise UserError(f"lora.rank={rank} is more than {most}, the most that {name} can have.")
