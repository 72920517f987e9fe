"""Stacked blocks by name: which parameters have a leading layer axis, what one layer is called.

A stack keeps the parameters of its L blocks in one array each, under a part named "block":
`blocks/block/mlp/fc1/kernel` is [L, D, M]. That of layer 3 alone is `blocks/3/mlp/fc1/kernel`.
"""

STACKED = "block"  # the part of a name below which every array has a leading layer axis


def is_stacked(name: str) -> bool:
    """Whether the parameter of this name has a leading layer axis."""
    return STACKED in name.split("/")


def layer_name(name: str, layer: int) -> str:
    """What a stacked parameter's array is called in one layer, counted from 0."""
    parts = name.split("/")
    parts[parts.index(STACKED)] = str(layer)
    return "/".join(parts)


def stack_name(name: str) -> str:
    """What a stacked parameter's stack is called: "blocks" of "blocks/block/mlp/fc1/kernel"."""
    parts = name.split("/")
    return "/".join(parts[: parts.index(STACKED)])
