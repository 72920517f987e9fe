"""Nested dictionaries of arrays by name: {"head": {"bias": x}} <-> {"head/bias": x}.

A stack of blocks keeps each parameter of its L blocks in one array, under a part named "block":
`blocks/block/mlp/fc1/kernel` is [L, D, M]. In layer 3 alone it is `blocks/3/mlp/fc1/kernel`.
"""

from typing import Any

import jax


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
    """Whether the parameter of this name has a leading layer axis."""
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
