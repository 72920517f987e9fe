"""Frozen parameters, which training does not change, by pattern (optim/patterns.py).

They have no gradient, so they count neither in clipping nor in the log; no weight decay; and, if
all layers of a parameter are frozen, no arrays in the optimizer's state.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core.errors import UserError
from vit_jax.optim import patterns


def frozen(params: Any, freeze: tuple[str, ...]) -> Any:
    """Tree of bool arrays, [L] for a stacked parameter and [] for another: True where it is frozen.

    Raises UserError for a pattern that matches nothing, or if nothing is left to be trained.
    """
    masks = [patterns.match(pattern, params, field="optim.freeze") for pattern in freeze]
    is_frozen = jax.tree.map(lambda *each: np.logical_or.reduce(each), *masks)
    leaves = jax.tree.leaves(is_frozen)
    if leaves and all(mask.all() for mask in leaves):
        raise UserError(f"optim.freeze={','.join(freeze)} leaves no parameter to be trained.")
    return is_frozen


def stop_gradients(params: Any, freeze: tuple[str, ...]) -> Any:
    """The same parameters; the gradients of the frozen ones are zero and not computed.

    Each layer of a stack is stopped separately, so that the compiler sees which gradients are
    needed when blocks are unrolled. A scan computes the gradients of all its layers.
    """
    if not freeze:
        return params

    def stop(param: jax.Array, mask: np.ndarray) -> jax.Array:
        if mask.all():
            return jax.lax.stop_gradient(param)
        if not mask.any():
            return param
        layers = jax.lax.split(param, [1] * len(mask))
        each = [jax.lax.stop_gradient(x) if m else x for x, m in zip(layers, mask, strict=True)]
        return jnp.concatenate(each)

    return jax.tree.map(stop, params, frozen(params, freeze))


def without(
    optimizer: optax.GradientTransformation, freeze: tuple[str, ...]
) -> optax.GradientTransformation:
    """`optimizer` for all but the frozen parameters, whose updates are zero.

    `init` raises UserError as `frozen` does. The gradients must come through `stop_gradients`.
    """
    if not freeze:
        return optimizer

    def labels(params: Any) -> Any:
        return jax.tree.map(lambda m: "frozen" if m.all() else "trained", frozen(params, freeze))

    def zero(updates: Any, _: Any) -> Any:
        keep = lambda update, mask: jnp.where(patterns.over(mask, update), 0.0, update)
        return jax.tree.map(keep, updates, frozen(updates, freeze))

    parts = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
    return optax.chain(parts, optax.stateless(zero))
