"""Logical axis names: models name an axis by its meaning, one table of rules shards it.

Layers call `constrain(x, BATCH, TOKENS, WIDTH)` and never see a mesh. `use_rules` (entered by the
code that compiles a step) sets the table from logical names to mesh axes; without it, or without a
mesh, `constrain` returns its argument.
"""

import contextlib
import contextvars
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.layout import Layout, with_layout_constraint
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
KERNEL = "kernel"  # rows and columns of a convolution's kernel
CHANNELS = "channels"  # channels of the feature maps inside a ResNet's unit
RANK = "rank"  # between the two factors of a low-rank adapter
SQUEEZED = "squeezed"  # channels between squeeze and excitation

LOGICAL_AXES = (
    BATCH, TOKENS, WIDTH, STREAM, HEADS, HEAD_SIZE, MLP, LAYERS, CLASSES, QKV, PATCH, POSITIONS,
    KERNEL, CHANNELS, RANK, SQUEEZED,
)  # fmt: skip

# Logical axis -> the mesh axes that it is sharded over, slowest first; () for none.
Rules = Mapping[str, tuple[str, ...]]

_RULES: contextvars.ContextVar[Rules | None] = contextvars.ContextVar("rules", default=None)


@contextlib.contextmanager
def use_rules(rules: Rules) -> Iterator[None]:
    """Context in which `constrain` follows `rules`."""
    token = _RULES.set(rules)
    try:
        yield
    finally:
        _RULES.reset(token)


def to_spec(
    names: Sequence[str | None], shape: Sequence[int], rules: Rules, mesh_shape: Mapping[str, int]
) -> PartitionSpec:
    """PartitionSpec for the logical names of an array's axes. Raises KeyError without a rule.

    An axis that does not divide over all mesh axes of its rule is sharded over as many of the first
    as possible and replicated over the others; `unsharded` lists such axes. A mesh axis that
    several axes could take goes to the one whose parts are longest.
    """
    if len(names) != len(shape):
        raise ValueError(f"{len(shape)} axes, but {len(names)} logical names {tuple(names)}")
    over = sharded_over(names, shape, rules, mesh_shape)
    return PartitionSpec(*(mesh_axes or None for mesh_axes in over))


def sharded_over(
    names: Sequence[str | None], shape: Sequence[int], rules: Rules, mesh_shape: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """The mesh axes that each axis of an array is sharded over."""
    over = [
        () if name is None else _dividing(size, rules[name], mesh_shape)
        for name, size in zip(names, shape, strict=True)
    ]
    for mesh_axis in mesh_shape:
        rivals = [i for i, mesh_axes in enumerate(over) if mesh_axis in mesh_axes]
        longest = max(rivals, key=lambda i: shape[i] // num_devices(over[i], mesh_shape), default=0)
        for i in set(rivals) - {longest}:
            over[i] = over[i][: over[i].index(mesh_axis)]
    return over


class UnshardedAxis(NamedTuple):
    """An array axis that is replicated along mesh axes that do not divide it."""

    name: str
    size: int
    over: tuple[str, ...]  # the mesh axes of its rule, without mesh axes of size 1
    replicated: tuple[str, ...]  # the mesh axes among them along which it is not sharded


def unsharded(
    names: Sequence[str | None], shape: Sequence[int], rules: Rules, mesh_shape: Mapping[str, int]
) -> list[UnshardedAxis]:
    """Axes that `to_spec` shards less than the rules say, unless others are sharded instead."""
    less = []
    taken = {a for mesh_axes in sharded_over(names, shape, rules, mesh_shape) for a in mesh_axes}
    for name, size in zip(names, shape, strict=True):
        over = tuple(a for a in rules[name] if mesh_shape[a] > 1) if name is not None else ()
        left = over[len(_dividing(size, over, mesh_shape)) :]
        replicated = tuple(a for a in left if a not in taken)
        if name is not None and replicated:
            less.append(UnshardedAxis(name, size, over, replicated))
    return less


def _dividing(
    size: int, mesh_axes: tuple[str, ...], mesh_shape: Mapping[str, int]
) -> tuple[str, ...]:
    """The longest prefix of these mesh axes over which `size` divides."""
    leading = (mesh_axes[:n] for n in range(len(mesh_axes), -1, -1))
    return next(part for part in leading if size % num_devices(part, mesh_shape) == 0)


def num_devices(mesh_axes: Iterable[str], mesh_shape: Mapping[str, int]) -> int:
    """Number of parts of an array axis that is sharded over these mesh axes."""
    return math.prod(mesh_shape[a] for a in mesh_axes)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Pins the sharding of an activation whose axes have these logical names."""
    rules, mesh = _RULES.get(), jax.sharding.get_abstract_mesh()
    if rules is None or mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, to_spec(names, x.shape, rules, mesh.shape))


class Target(NamedTuple):
    """The devices that a program is traced for: jax.Device's `platform` and `device_kind`."""

    platform: str
    kind: str


def target() -> Target:
    """The devices of the mesh in context, which may be absent; without one: JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return Target(device.platform, device.device_kind)


CPU_EXAMPLES = 8


def examples_at_once() -> int | None:
    """Number of examples that a device computes at once; None: as many as it is given.

    On a CPU activations of a few stay in the caches: up to twice as fast as larger batches.
    """
    return CPU_EXAMPLES if target().platform == "cpu" else None


def per_device(
    f: Callable[..., Any],
    names: Sequence[Sequence[str | None]],
    results: Sequence[Sequence[str | None]],
    *arrays: jax.Array,
) -> Any:
    """f on the parts of arrays that each device has: for kernels that XLA cannot divide.

    names: logical names of each array's axes; results: of those that f returns. An axis has the
    size that its name has in the arrays.
    """
    rules, mesh = _RULES.get(), jax.sharding.get_abstract_mesh()
    if rules is None or mesh.empty:
        return f(*arrays)
    pairs = [zip(of, x.shape, strict=True) for of, x in zip(names, arrays, strict=True)]
    sizes = dict(itertools.chain(*pairs))
    in_specs, out_specs = (
        tuple(to_spec(of, [sizes[name] for name in of], rules, mesh.shape) for of in each)
        for each in (names, results)
    )
    return jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, check_vma=False)(*arrays)


def pin_activation_layout(x: jax.Array, *names: str | None) -> jax.Array:
    """Pins the layout of an activation in a GPU's memory: axes in order, the last one contiguous.

    names: logical names of its axes. For [B, N, D] XLA would choose B to be contiguous there, and
    copy tokens before and after the products of every block. Elsewhere it returns x.
    """
    if jax.sharding.get_abstract_mesh().empty or target().platform != "gpu":
        return x
    order = Layout(major_to_minor=tuple(range(x.ndim)))
    # By itself XLA would gather all of x for it.
    return per_device(lambda x: (with_layout_constraint(x, order),), [names], [names], x)[0]
