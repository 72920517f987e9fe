"""Names of stacked blocks: the parameters with a leading layer axis, and single layers' names.

A stack keeps each parameter of its L blocks in one array, under a part named "block":
`blocks/block/mlp/fc1/kernel` is [L, D, M]. In layer 3 alone it is `blocks/3/mlp/fc1/kernel`.
"""

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
