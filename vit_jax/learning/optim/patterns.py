"""Parameters that are trained in another way: frozen, or by multiples of the learning rate.

They are chosen by patterns: names, how names begin, or regular expressions that must match a whole
name (compile_pattern of models/adapters.py). A stacked parameter matches by its own name, for all
layers, and by each layer's: `blocks/block/mlp/fc1/kernel`, and `blocks/0/mlp/fc1/kernel` for the
first layer alone. So `blocks/0-5` is everything in the first six blocks, `blocks` in all blocks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.pytrees import LORA_B, METHOD_PARAMS, is_stacked, layer_name, stack_name

if TYPE_CHECKING:
    from vit_jax.models.adapters import Adapters

FIELD = "optim.lr_multipliers"
# Parts of relative positions, which act in the blocks.
_RELATIVE = ("offsets", "offsets_2d", "fc1", "fc2")
BEFORE_THE_BLOCKS = (  # first parts of names
    "patches", "positions", "cls", "registers", "distillation_token", "distillation_position",
    "pre_norm",
)  # fmt: skip
ROOT = "root"  # the part of a name for the parameters before the units of a ResNet


def match(pattern: str, params: Any, *, field: str) -> Any:
    """Tree of bool arrays, True for a match: [L] for a stacked parameter, [] for another.

    Raises UserError, naming `field`, for an invalid pattern or one that matches nothing.
    """
    from vit_jax.models.adapters import compile_pattern

    matches = compile_pattern(pattern, field)

    def mask(name: str, param: Any) -> np.ndarray:
        layers = [layer_name(name, i) for i in range(param.shape[0])] if is_stacked(name) else []
        return np.array([matches(name, n) for n in layers] if layers else matches(name))

    masks = pytrees.map_named(mask, params)
    by_name = pytrees.flatten(masks)
    if by_name and not any(m.any() for m in by_name.values()):
        parts = {name.partition("/")[0] for name in by_name}
        raise UserError(
            f"{field}: {pattern!r} matches no parameter, neither a part, as blocks/0-5, nor whole "
            f"names, as blocks/0/mlp/fc1/bias. {nearest(pattern, parts | by_name.keys())}"
        )
    return masks


def over(mask: np.ndarray, param: Any) -> np.ndarray:
    """A mask or factors, [L] or [], expanded to as many axes as the parameter."""
    return mask.reshape(mask.shape + (1,) * (param.ndim - mask.ndim))


# --- low-rank adapters (models/adapters.py), which are trained in place of kernels


def _trained_with(adapters: Adapters, params: Any) -> Any:
    """Tree of bool arrays as `Frozen.masks` gives, True where a parameter is trained."""
    from vit_jax.models.adapters import adapted

    masks = [match(pattern, params, field="lora.train") for pattern in adapters.train]
    nowhere = jax.tree.map(lambda x: np.array(False), params)
    beside = jax.tree.map(_any_of, nowhere, *masks)

    def factor(name: str, x: Any, mask: np.ndarray) -> np.ndarray:
        if not pytrees.is_adapter(name):
            return mask
        kernel = pytrees.adapted_kernel(name)
        chosen = np.any([adapted(p, kernel, x.shape) for p in adapters.kernels], axis=0)
        if chosen.shape[1] == 1 or not name.endswith(LORA_B):
            chosen = chosen.any(axis=1)  # A does nothing where B stays zero
        return chosen if is_stacked(name) else np.asarray(chosen[0])

    return pytrees.map_named(factor, params, beside)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """The parameters that a run does not train.

    They have no gradient, which clipping and the log would count; no weight decay; and, if all
    layers are frozen, no arrays in the optimizer's state.
    """

    freeze: tuple[str, ...] = ()  # patterns of names
    adapters: Adapters | None = None  # if given, everything else is frozen, but for what they say

    def masks(self, params: Any) -> Any:
        """Tree of bool arrays, [L] for a stacked parameter and [] for another: True if frozen.

        With adapters a mask may be [L, n], for n projections side by side.

        Raises:
          UserError: a pattern matches nothing, or nothing is left to be trained.
        """
        masks = [match(pattern, params, field="optim.freeze") for pattern in self.freeze]
        if self.adapters is not None:
            masks.append(jax.tree.map(np.logical_not, _trained_with(self.adapters, params)))
        is_frozen = jax.tree.map(_any_of, *masks)
        leaves = jax.tree.leaves(is_frozen)
        if leaves and all(mask.all() for mask in leaves):
            patterns = ",".join(self.freeze)
            raise UserError(f"optim.freeze={patterns} leaves no parameter to be trained.")
        return is_frozen

    def stop_gradients(self, params: Any) -> Any:
        """The same parameters; the gradients of the frozen ones are zero and not computed.

        Each layer of a stack is stopped separately, so that the compiler sees which gradients are
        needed when blocks are unrolled. A scan computes the gradients of all its layers.
        """

        def stop(param: jax.Array, mask: np.ndarray) -> jax.Array:
            if mask.all():
                return jax.lax.stop_gradient(param)
            if not mask.any():
                return param
            if mask.ndim > 1:
                return jnp.where(over(mask, param), jax.lax.stop_gradient(param), param)
            layers = jax.lax.split(param, [1] * len(mask))
            each = [jax.lax.stop_gradient(x) if m else x for x, m in zip(layers, mask, strict=True)]
            return jnp.concatenate(each)

        return jax.tree.map(stop, params, self.masks(params))

    def without_frozen(
        self, optimizer: optax.GradientTransformation
    ) -> optax.GradientTransformation:
        """`optimizer` for all but the frozen parameters, whose updates are zero.

        `init` raises UserError as `masks` does. The gradients must come through `stop_gradients`.
        """

        def labels(params: Any) -> Any:
            return jax.tree.map(lambda m: "frozen" if m.all() else "trained", self.masks(params))

        def zero(updates: Any, _: Any) -> Any:
            masks = self.masks(updates)
            return jax.tree.map(lambda u, mask: jnp.where(over(mask, u), 0.0, u), updates, masks)

        parts = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
        return optax.chain(parts, optax.stateless(zero))

    def trained_parts(self, params: Any) -> list[str]:
        """The parts in which something is trained: ["blocks/6-11", "head"]."""
        layers: dict[str, set[int]] = {}
        for name, mask in pytrees.flatten(self.masks(params)).items():
            if mask.all():
                continue
            if is_stacked(name):
                is_trained = ~mask.reshape(len(mask), -1).all(axis=1)
                trained = np.flatnonzero(is_trained).tolist()
                layers.setdefault(stack_name(name), set()).update(trained)
            else:
                layers.setdefault(name.partition("/")[0], set())
        parts = []
        for part, numbers in sorted(layers.items()):
            rising = np.array(sorted(numbers))
            runs = np.split(rising, np.flatnonzero(np.diff(rising) > 1) + 1) if numbers else []
            parts += [f"{part}/{r[0]}-{r[-1]}" if len(r) > 1 else f"{part}/{r[0]}" for r in runs]
            parts += [] if numbers else [part]
        return parts


def _any_of(*masks: np.ndarray) -> np.ndarray:
    """Masks of one parameter, [], [L] or [L, n] -> the union, with as many axes as any has."""
    axes = max(mask.ndim for mask in masks)
    wide = [mask.reshape(mask.shape + (1,) * (axes - mask.ndim)) for mask in masks]
    return functools.reduce(np.logical_or, wide)


# --- multipliers of learning rates


def with_lr_multipliers(
    optimizer: optax.GradientTransformation,
    *,
    layer_decay: float | None,
    lr_multipliers: tuple[str, ...],
) -> optax.GradientTransformation:
    """`optimizer` with its updates multiplied by a factor for each parameter or layer.

    Args:
      layer_decay: ratio of a layer's rate to the rate of the layer above it; None: 1.
      lr_multipliers: "PATTERN=FACTOR" ; the factors of all matching patterns
        are multiplied.
    """
    by_pattern = [_parsed(text) for text in lr_multipliers]

    def factors(params: Any) -> Any:
        all_factors = layer_factors(params, 1.0 if layer_decay is None else layer_decay)
        for pattern, factor in by_pattern:
            masks = match(pattern, params, field=FIELD)
            all_factors = jax.tree.map(
                lambda f, m, x=factor: f * np.where(m, x, 1.0), all_factors, masks
            )
        return all_factors

    def init(params: Any) -> optax.EmptyState:
        factors(params)  # a pattern that matches nothing is refused before anything compiles
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        scaled = jax.tree.map(
            lambda u, f: u * over(f, u).astype(u.dtype), updates, factors(updates)
        )
        return scaled, state

    return optax.chain(optimizer, optax.GradientTransformation(init, update))


def layer_factors(params: Any, layer_decay: float) -> Any:
    """Learning-rate factors, [L] for a stacked parameter and [] for another.

    As in BEiT (arXiv 2106.08254) and MAE (arXiv 2111.06377, appendix A.1): the last of L blocks
    has layer_decay, the first layer_decay ** L, the embeddings one power more, and parameters after
    the blocks have 1, and so has the table of relative positions that they share, as in the code of
    BEiT. The units of a ResNet are blocks too, in a hybrid below the ViT's blocks; a
    ResNet's root has one power more than its first unit. What a method of pre-training adds has 1:
    a decoder's blocks are none of the model's layers.
    """
    arrays = [(name, x) for name, x in pytrees.flatten(params).items() if not _is_beside(name)]
    stacks = {stack_name(name): x.shape[0] for name, x in arrays if is_stacked(name)}
    above: dict[str, int] = {}  # layers above a stack
    total = in_vit = 0
    for stack in sorted(sorted(stacks, reverse=True), key=_is_before):  # from the head down
        above[stack] = total
        total += stacks[stack]
        in_vit = in_vit if _is_before(stack) else total

    def factor(name: str, x: Any) -> np.ndarray:
        if _is_beside(name):
            return np.array(1.0)
        if is_stacked(name):
            from_above = x.shape[0] - np.arange(x.shape[0])
            return layer_decay ** (above[stack_name(name)] + from_above)
        if ROOT in name.split("/"):
            return np.array(layer_decay ** (total + 1))
        return np.array(layer_decay ** (in_vit + 1) if _is_before(name) else 1.0)

    return pytrees.map_named(factor, params)


def _is_beside(name: str) -> bool:
    return name.partition("/")[0] == METHOD_PARAMS


def _is_before(name: str) -> bool:
    """Whether a parameter comes before the blocks of a ViT, which share relative positions."""
    first, part = (*name.split("/"), "")[:2]
    return first in BEFORE_THE_BLOCKS and not (first == "positions" and part in _RELATIVE)


def _parsed(text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not pattern or not 0 < factor < math.inf:
        raise UserError(f"{FIELD}: {text!r} is not PATTERN=FACTOR with a factor above 0.")
    return pattern, factor
