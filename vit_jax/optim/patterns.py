"""Parameters by pattern: a regular expression that must match a whole name.

A stacked parameter matches by its own name, for all layers, and by each layer's name:
`blocks/block/mlp/fc1/kernel`, and `blocks/0/mlp/fc1/kernel` for the first layer alone. So
`blocks/[0-5]/.*` is everything in the first six blocks, and `blocks/.*` everything in all blocks.
"""

import re
from typing import Any

import numpy as np

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.pytrees import is_stacked, layer_name


def match(pattern: str, params: Any, *, field: str) -> Any:
    """Tree of bool arrays, True for a match: [L] for a stacked parameter, [] for another.

    Raises UserError, naming `field`, for an invalid pattern or one that matches nothing.
    """
    try:
        matches = re.compile(pattern).fullmatch
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"{field}: {pattern!r} is not a regular expression: {error}.") from error

    def mask(name: str, param: Any) -> np.ndarray:
        layers = [layer_name(name, i) for i in range(param.shape[0])] if is_stacked(name) else []
        whole = matches(name) is not None
        return np.array([whole or matches(n) is not None for n in layers] if layers else whole)

    masks = pytrees.map_named(mask, params)
    by_name = pytrees.flatten(masks)
    if by_name and not any(m.any() for m in by_name.values()):
        raise UserError(
            f"{field}: {pattern!r} matches no parameter. It has to match a whole name, such as "
            f"patches/kernel, blocks/0/mlp/fc1/bias or, for all layers, blocks/block/mlp/fc1/bias. "
            f"{nearest(pattern, by_name)}"
        )
    return masks


def over(mask: np.ndarray, param: Any) -> np.ndarray:
    """A mask or factors, [L] or [], expanded to as many axes as the parameter."""
    return mask.reshape(mask.shape + (1,) * (param.ndim - mask.ndim))
