"""Weight decay: the parameters it applies to, and the three meanings of its coefficient.

With learning rate lr(t), its peak lr_peak and the coefficient wd:

    lr_scaled        p -= lr(t) * wd * p             AdamW as torch and optax write it
    schedule_scaled  p -= lr(t) / lr_peak * wd * p   configs that quote the product lr_peak * wd
    coupled          g += wd * p                     L2 regularisation, after clipping
"""

from typing import Any, NamedTuple

import optax

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.optim.schedules import Schedule


class Meaning(NamedTuple):
    """The way weight decay enters an update of -lr(t) * (the update rule's output)."""

    decoupled: bool  # True: added to the update rule's output. False: to the gradient.
    over_peak: bool  # True: the coefficient already contains the peak learning rate.


WEIGHT_DECAY_MEANINGS = {
    "lr_scaled": Meaning(decoupled=True, over_peak=False),
    "schedule_scaled": Meaning(decoupled=True, over_peak=True),
    "coupled": Meaning(decoupled=False, over_peak=False),
}


def kernels_only(params: Any) -> Any:
    """Tree of bool, True where the leaf is a kernel, or a factor of its low-rank adapter.

    Biases, norms' scales, position embedding and class token are excluded: the paper's recipes
    (arXiv 2010.11929, appendix B.1) decay only the kernels.
    """
    is_kernel = lambda name: name.split("/")[-1] == "kernel" or pytrees.is_adapter(name)
    return pytrees.map_named(lambda name, _: is_kernel(name), params)


def add_decay(
    update_rule: optax.GradientTransformation,
    *,
    weight_decay: float,
    meaning: str,
    peak_lr: float,
    schedule: Schedule | None = None,
) -> optax.GradientTransformation:
    """Adds decay of the kernels before or after an update rule; still to be scaled by -lr(t).

    schedule: lr(t), of a rule whose updates are scaled by -lr(t) already; the decay then is too.

    Raises UserError for an unknown meaning, or if it divides by a peak learning rate of 0.
    """
    factor = decay_per_lr(weight_decay, meaning, peak_lr)
    before = after = optax.identity()
    if weight_decay and WEIGHT_DECAY_MEANINGS[meaning].decoupled:
        scaled = factor if schedule is None else lambda step: -factor * schedule(step)
        after = optax.add_decayed_weights(scaled, mask=kernels_only)
    elif weight_decay:
        before = optax.add_decayed_weights(factor, mask=kernels_only)
    # Always three, so that the names of the optimizer's arrays do not depend on the decay.
    return optax.chain(before, update_rule, after)


def decay_per_lr(weight_decay: float, meaning: str, peak_lr: float) -> float:
    """The factor f in an update of -lr(t) * (u + f * p), with u from the update rule.

    A kernel loses lr(t) * f of itself where nothing follows the decay: for the decoupled meanings
    all optimizers but LAMB, for `coupled` SGD without momentum.
    """
    if meaning not in WEIGHT_DECAY_MEANINGS:
        raise UserError(
            f"optim.weight_decay_meaning={meaning!r} is unknown. "
            f"{nearest(meaning, WEIGHT_DECAY_MEANINGS)}"
        )
    if not WEIGHT_DECAY_MEANINGS[meaning].over_peak or not weight_decay:
        return weight_decay
    if not peak_lr:
        raise UserError(
            f"optim.weight_decay_meaning={meaning!r} divides by the peak learning rate, but "
            "optim.lr=0; set optim.lr above 0 or optim.weight_decay=0."
        )
    return weight_decay / peak_lr
