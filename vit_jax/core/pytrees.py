"""Nested dictionaries of arrays by name: {"head": {"bias": x}} <-> {"head/bias": x}.

A stack of blocks keeps each parameter of its L blocks in one array, under a part named "block":
`blocks/block/mlp/fc1/kernel` is [L, D, M]. In layer 3 alone it is `blocks/3/mlp/fc1/kernel`.

An unstacked tree has the kernels of a stack as one array per layer instead, [D, M] each, under
`blocks/block[3]/mlp/fc1/kernel`; vectors, [L, D], are too small for that and stay stacked.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

METHOD_PARAMS = "method"  # the part of a model's parameters with what is trained beside it


def path_name(path: tuple[Any, ...]) -> str:
    """A JAX key path as "blocks/attn/qkv/kernel"; positions and attributes count as names."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def flatten(tree: Any) -> dict[str, Any]:
    """Leaves by name, in JAX's order of leaves."""
    return {path_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def unflatten(named: dict[str, Any]) -> dict[str, Any]:
    """The nested dictionary that `flatten` came from; only for trees of dictionaries."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def map_named(function: Any, tree: Any, *rest: Any) -> Any:
    """Maps `function(name, leaf, *other_leaves)` over trees of the same structure."""
    return jax.tree_util.tree_map_with_path(lambda p, *xs: function(path_name(p), *xs), tree, *rest)


def num_elements(tree: Any) -> int:
    """Number of scalars in all leaves (arrays or ShapeDtypeStructs)."""
    return sum(int(x.size) for x in jax.tree.leaves(tree))


STACKED = "block"  # the part of a name below which every array has a leading layer axis


def is_stacked(name: str) -> bool:
    """Returns whether the parameter of this name has a leading layer axis."""
    return STACKED in name.split("/")


def layer_name(name: str, layer: int) -> str:
    """The name of a stacked parameter's array in one layer, counted from 0."""
    parts = name.split("/")
    parts[parts.index(STACKED)] = str(layer)
    return "/".join(parts)


def stack_name(name: str) -> str:
    """The name of a stacked parameter's stack: "blocks" in "blocks/block/mlp/fc1/kernel"."""
    parts = name.split("/")
    return "/".join(parts[: parts.index(STACKED)])


# Several projections to H heads of K side by side: kernels [D, n, H, K], biases [n, H, K].
PROJECTIONS = {"qkv": ("query", "key", "value"), "query": ("query",), "key_value": ("key", "value")}

LORA_A, LORA_B = "lora_a", "lora_b"  # last parts of the names of a kernel's adapter


def is_adapter(name: str) -> bool:
    """Returns whether the parameter of this name is a factor of a kernel's low-rank adapter."""
    return name.rsplit("/", maxsplit=1)[-1] in (LORA_A, LORA_B)


def adapted_kernel(name: str) -> str:
    """The name of the kernel that an adapter's factor belongs to."""
    return name.rpartition("/")[0] + "/kernel"


# --- running statistics, which are among a model's parameters and are not trained

RUNNING_MEAN, RUNNING_VARIANCE = "running_mean", "running_variance"  # last parts of their names


def is_statistic(name: str) -> bool:
    """Returns whether the parameter of this name is a running statistic of a batch norm."""
    return name.rsplit("/", maxsplit=1)[-1] in (RUNNING_MEAN, RUNNING_VARIANCE)


def without_statistics(tree: Any) -> Any:
    """A tree of dictionaries without running statistics; the same tree if it has none."""
    named = flatten(tree)
    kept = {name: x for name, x in named.items() if not is_statistic(name)}
    return tree if len(kept) == len(named) else unflatten(kept)


def with_statistics(kept: Any, changes: Any) -> Any:
    """`kept`, a tree without running statistics, with those of `changes` negated.

    The backward pass gives, in place of a statistic's gradient, what is to be subtracted from it:
    negated, it is an update, as those of an optimizer in `kept`.
    """
    named = flatten(changes)
    dropped = {name: -x for name, x in named.items() if is_statistic(name)}
    return unflatten({**flatten(kept), **dropped}) if dropped else kept


# --- trees whose stacked kernels are one array per layer

_OF_LAYER = re.compile(rf"{STACKED}\[(\d+)\]")


class Layers:
    """The arrays of a stack's layers in place of one stacked array; for JAX a single leaf."""

    def __init__(self, each: Sequence[Any]):
        self.each = tuple(each)


def unstack_layers(tree: Any, cut: Callable[[Any], Sequence[Any]]) -> Any:
    """The tree with one array per layer for each stack of matrices: cut([L, D, M]) gives them.

    Tuples, as an optimizer's state has, may be around the dictionaries. A tree without stacks is
    returned as it is.
    """

    def split_stack(stack: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for name, x in flatten(stack).items():
            arrays = {STACKED: x}
            if x.ndim > 2:
                arrays = {f"{STACKED}[{i}]": one for i, one in enumerate(cut(x))}
            done |= {f"{key}/{name}": array for key, array in arrays.items()}
        return unflatten(done)

    def each(key: str, value: Any) -> dict[str, Any]:
        return split_stack(value) if key == STACKED else {key: unstack_layers(value, cut)}

    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in each(key, value).items()}
    return _map_tuple(tree, lambda x: unstack_layers(x, cut))


def stack_layers(tree: Any, join: Callable[[Sequence[Any]], Any]) -> Any:
    """Undoes `unstack_layers`: join(arrays of L layers) gives a stacked one."""
    if not isinstance(tree, dict):
        return _map_tuple(tree, lambda x: stack_layers(x, join))
    numbers = {key: int(m[1]) for key in tree if (m := _OF_LAYER.fullmatch(key))}
    done = {key: stack_layers(value, join) for key, value in tree.items() if key not in numbers}
    if numbers:
        layers = [flatten(tree[key]) for key in sorted(numbers, key=lambda key: numbers[key])]
        joined = {name: join([layer[name] for layer in layers]) for name in layers[0]}
        done[STACKED] = unflatten({**flatten(done.get(STACKED, {})), **joined})
    return done


def group_layers(tree: Any) -> Any:
    """An unstacked tree with `Layers` in place of each stack, as models take it."""
    return stack_layers(tree, Layers)


def _map_tuple(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The tuple with `function` of each element; anything else as it is."""
    if not isinstance(tree, tuple):
        return tree
    values = map(function, tree)
    return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
