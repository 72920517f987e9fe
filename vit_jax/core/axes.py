"""Logical axis names: models say what an axis means, one rules table says where it lives.

Layers call `constrain(x, BATCH, TOKENS, WIDTH)` and know no mesh. `use_rules` (entered by whoever
compiles a step) gives the table from logical names to mesh axes; without it, or without a mesh,
`constrain` returns its argument.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

import jax
from jax.sharding import PartitionSpec

BATCH = "batch"
TOKENS = "tokens"
WIDTH = "width"  # D, of parameters
STREAM = "stream"  # D, of activations: the residual stream
HEADS = "heads"  # H
HEAD_SIZE = "head_size"  # K
MLP = "mlp"  # hidden layer of the MLP
LAYERS = "layers"  # the stacked axis of repeated blocks
CLASSES = "classes"
QKV = "qkv"  # the three projections of one kernel
PATCH = "patch"  # rows, columns and channels of a patch
POSITIONS = "positions"  # entries of a position table

LOGICAL_AXES = (
    BATCH, TOKENS, WIDTH, STREAM, HEADS, HEAD_SIZE, MLP, LAYERS, CLASSES, QKV, PATCH, POSITIONS,
)  # fmt: skip

Rules = Mapping[str, str | tuple[str, ...] | None]

_RULES: contextvars.ContextVar[Rules | None] = contextvars.ContextVar("rules", default=None)


@contextlib.contextmanager
def use_rules(rules: Rules) -> Iterator[None]:
    """Inside, `constrain` follows `rules`."""
    token = _RULES.set(rules)
    try:
        yield
    finally:
        _RULES.reset(token)


def to_spec(names: tuple[str | None, ...], rules: Rules) -> PartitionSpec:
    """Logical names of an array's axes -> its PartitionSpec. KeyError for a name without a rule."""
    return PartitionSpec(*(None if n is None else rules[n] for n in names))


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Pins the sharding of an activation whose axes have these logical names."""
    rules = _RULES.get()
    if rules is None or jax.sharding.get_abstract_mesh().empty:
        return x
    if len(names) != x.ndim:
        raise ValueError(f"{x.ndim} axes, but {len(names)} logical names {names}")
    return jax.lax.with_sharding_constraint(x, to_spec(names, rules))
