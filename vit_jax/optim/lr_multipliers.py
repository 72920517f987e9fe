"""Multipliers of learning rates: smaller towards the first layer, or by pattern.

They multiply a parameter's whole update, decoupled weight decay included.
"""

import math
from typing import Any

import jax
import numpy as np
import optax

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked, stack_name
from vit_jax.optim import patterns

FIELD = "optim.lr_multipliers"
BEFORE_THE_BLOCKS = ("patches", "positions", "cls", "registers")  # first parts of names
ROOT = "root"  # the part of a name for the parameters before the units of a ResNet


def with_lr_multipliers(
    optimizer: optax.GradientTransformation,
    *,
    layer_decay: float | None,
    lr_multipliers: tuple[str, ...],
) -> optax.GradientTransformation:
    """`optimizer` with its updates multiplied by a factor for each parameter or layer.

    Args:
      optimizer: a complete one, learning rate included.
      layer_decay: ratio of a layer's rate to the rate of the layer above it; None: 1.
      lr_multipliers: "PATTERN=FACTOR" (optim/patterns.py); the factors of all matching patterns
        are multiplied.

    Raises:
      UserError: here or by `init`, for a number out of range or a pattern that matches nothing.
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise UserError(
            f"optim.layer_decay={layer_decay}: give more than 0 and at most 1, or None; 0.65 to "
            "0.9 are usual."
        )
    by_pattern = [_parsed(text) for text in lr_multipliers]
    if layer_decay is None and not by_pattern:
        # A chain as below, so that the optimizer's arrays have the same names either way.
        return optax.chain(optimizer, optax.identity())

    def factors(params: Any) -> Any:
        all_factors = layer_factors(params, 1.0 if layer_decay is None else layer_decay)
        for pattern, factor in by_pattern:
            masks = patterns.match(pattern, params, field=FIELD)
            scale = lambda f, m, x=factor: f * np.where(m, x, 1.0)
            all_factors = jax.tree.map(scale, all_factors, masks)
        return all_factors

    def init(params: Any) -> optax.EmptyState:
        factors(params)  # a pattern that matches nothing is refused before anything compiles
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        scale = lambda u, f: u * patterns.over(f, u).astype(u.dtype)
        return jax.tree.map(scale, updates, factors(updates)), state

    return optax.chain(optimizer, optax.GradientTransformation(init, update))


def layer_factors(params: Any, layer_decay: float) -> Any:
    """Learning-rate factors, [L] for a stacked parameter and [] for another.

    As in BEiT (arXiv 2106.08254) and MAE (arXiv 2111.06377, appendix A.1): the last of L blocks
    has layer_decay, the first layer_decay ** L, the embeddings one power more, and parameters after
    the blocks have 1. The units of a ResNet are blocks too, in a hybrid below the ViT's blocks; a
    ResNet's root has one power more than its first unit.
    """
    arrays = pytrees.flatten(params).items()
    stacks = {stack_name(name): x.shape[0] for name, x in arrays if is_stacked(name)}
    above: dict[str, int] = {}  # layers above a stack
    total = in_vit = 0
    for stack in sorted(sorted(stacks, reverse=True), key=_is_before):  # from the head down
        above[stack] = total
        total += stacks[stack]
        in_vit = in_vit if _is_before(stack) else total

    def factor(name: str, x: Any) -> np.ndarray:
        if is_stacked(name):
            from_above = x.shape[0] - np.arange(x.shape[0])
            return layer_decay ** (above[stack_name(name)] + from_above)
        if ROOT in name.split("/"):
            return np.array(layer_decay ** (total + 1))
        return np.array(layer_decay ** (in_vit + 1) if _is_before(name) else 1.0)

    return pytrees.map_named(factor, params)


def _is_before(name: str) -> bool:
    """Whether a parameter comes before the blocks of a ViT."""
    return name.partition("/")[0] in BEFORE_THE_BLOCKS


def _parsed(text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not pattern or not 0 < factor < math.inf:
        raise UserError(
            f"{FIELD} takes PATTERN=FACTOR with a factor above 0, such as head/.*=10, got "
            f"{text!r}. What is not to move at all belongs into optim.freeze."
        )
    return pattern, factor
