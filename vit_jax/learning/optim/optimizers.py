"""Optimizers by name: clipping, update rule, weight decay and learning rate, in this order.

A new one is an update rule, from optax or of one's own, and a line of OPTIMIZERS. All treat stacked
blocks separately; one that is not elementwise sees a matrix at a time (learning/optim/matrices.py).

Weight decay has three meanings. With learning rate lr(t), its peak lr_peak and the coefficient wd:

    lr_scaled        p -= lr(t) * wd * p             AdamW as torch and optax write it
    schedule_scaled  p -= lr(t) / lr_peak * wd * p   configs that quote the product lr_peak * wd
    coupled          g += wd * p                     L2 regularisation, after clipping
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked
from vit_jax.learning.optim.schedules import Schedule

ADAFACTOR_MAX_RMS = 1.0  # for one matrix's update
ADAFACTOR_MEMORY_POWER = 0.8  # the second moment's memory is 1 - t ** -0.8 until b2 caps it
MUON_RMS = 0.2  # about the same as Adam's updates


class Moments(NamedTuple):
    """An optimizer's averages of gradients over steps; OPTIMIZERS lists the fields each reads."""

    b1: float  # decay rate of the first moment
    b2: float  # decay rate of the second moment; Lion: of the momentum
    eps: float  # added to the square root of the second moment; RMSProp: under it
    momentum: float  # decay rate of the velocity; 0: none is kept, but by Muon
    nesterov: bool  # SGD, Muon: look one step of the momentum ahead
    joint_qkv: bool  # LAMB: query, key and value have one trust ratio
    mu_dtype: str  # dtype of the stored first moment or momentum


def adam(m: Moments) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1)."""
    return optax.scale_by_adam(m.b1, m.b2, m.eps, mu_dtype=m.mu_dtype)


def nadam(m: Moments) -> optax.GradientTransformation:
    """Adam whose first moment looks one step ahead, as AlgoPerf's baseline (arXiv 2306.07179).

    Bias is corrected as Adam's. optax's `nadamw` corrects gradient and average by two factors.
    """
    moments = adam(m)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        _, after = moments.update(grads, state, params)
        mu = optax.tree.update_moment(grads, after.mu, m.b1, 1)
        mu = optax.tree.bias_correction(mu, m.b1, after.count)
        nu = optax.tree.bias_correction(after.nu, m.b2, after.count)
        return jax.tree.map(lambda x, y: x / (jnp.sqrt(y) + m.eps), mu, nu), after

    return optax.GradientTransformation(moments.init, update)


def sgd(m: Moments) -> optax.GradientTransformation:
    """SGD with velocity v = momentum * v + g, as in torch: the learning rate is applied later."""
    if not m.momentum:
        return optax.identity()
    return optax.trace(m.momentum, m.nesterov, accumulator_dtype=m.mu_dtype)


def rms(m: Moments) -> optax.GradientTransformation:
    """The gradient over the root of its mean square, which starts at 1, as TensorFlow's."""
    return optax.scale_by_rms(m.b2, m.eps, initial_scale=1.0)


def velocity(m: Moments) -> optax.GradientTransformation:
    """The velocity v = momentum * v + u of updates u."""
    return optax.trace(m.momentum, accumulator_dtype=m.mu_dtype) if m.momentum else optax.identity()


def lion(m: Moments) -> optax.GradientTransformation:
    """Lion: the sign of b1 * momentum + (1 - b1) * g (arXiv 2302.06675, algorithm 2)."""
    return optax.scale_by_lion(m.b1, m.b2, mu_dtype=m.mu_dtype)


def adafactor(m: Moments) -> optax.GradientTransformation:
    """Adafactor as Vision Transformers use it: arXiv 2106.04560, section 3.4.

    From arXiv 1804.04235 the factored second moment (algorithm 4) and the clipping of a matrix's
    update to a root mean square of 1 (section 6), but no step relative to the parameters' size;
    then a first moment without bias correction, and the second moment's decay rate capped at b2.
    The authors' code, big_vision, leaves clipping out, and factors no arrays below 32.
    """

    from vit_jax.learning.optim import matrices

    def memory(step: jax.Array, power: float) -> jax.Array:
        return jnp.minimum(m.b2, 1.0 - (step + 1.0) ** -power)

    factored = optax.scale_by_factored_rms(
        decay_rate=ADAFACTOR_MEMORY_POWER, decay_rate_fn=memory, min_dim_size_to_factor=1
    )
    clipped = optax.chain(factored, optax.clip_by_block_rms(ADAFACTOR_MAX_RMS))
    if not m.b1:
        return matrices.per_matrix(clipped)
    return optax.chain(
        matrices.per_matrix(clipped), optax.ema(m.b1, debias=False, accumulator_dtype=m.mu_dtype)
    )


def muon(m: Moments) -> optax.GradientTransformation:
    """Muon (kellerjordan.github.io/posts/muon) for the kernels of blocks, Adam for the rest.

    The momentum of a matrix is orthogonalised by five Newton-Schulz steps, then scaled to the root
    mean square of Adam's updates (arXiv 2502.16982, equation 4), so that one learning rate
    and one weight decay serve both. What is orthogonalised is the moving average of gradients, or,
    with `nesterov`, beta * average + (1 - beta) * gradient. optax corrects the bias of these two
    by different factors, which changes the direction of the first updates.
    """

    from vit_jax.learning.optim import matrices

    def axes(tree: Any) -> Any:
        def of(name: str, x: Any) -> optax.contrib.MuonDimensionNumbers:
            _, rows, columns = matrices.axes(name, x.ndim)
            return optax.contrib.MuonDimensionNumbers(rows, columns)

        return pytrees.map_named(of, tree)

    def like_adam(update: jax.Array) -> jax.Array:
        return update * (MUON_RMS * math.sqrt(max(update.shape)))

    # With beta=0 it orthogonalises what it is given.
    orthogonalise = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, mu_dtype=m.mu_dtype, weight_dimension_numbers=axes
    )

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        average = optax.tree.update_moment(grads, state.mu, m.momentum, 1)
        ahead = optax.tree.update_moment(grads, average, m.momentum, 1) if m.nesterov else average
        updates, after = orthogonalise.update(ahead, state, params)
        return updates, after._replace(mu=optax.tree.cast(average, m.mu_dtype))

    orthogonal = optax.GradientTransformation(orthogonalise.init, update)
    scaled = matrices.per_matrix(optax.stateless_with_tree_map(lambda u, _: like_adam(u)))

    def labels(params: Any) -> Any:
        return pytrees.map_named(
            lambda name, is_kernel: "muon" if is_kernel and is_stacked(name) else "adam",
            kernels_only(params),
        )

    return optax.partition({"muon": optax.chain(orthogonal, scaled), "adam": adam(m)}, labels)


class TrustRatio(NamedTuple):
    """LAMB's state for one matrix."""

    adapts: Any  # bool [], whether it has a trust ratio: it was never zero
    ratio: Any  # float32 [], the last update's trust ratio; 1 if it has none


def trust_ratio(m: Moments, weight_decay: float) -> optax.GradientTransformation:
    """Scales each kernel's update to the kernel's norm (LAMB, arXiv 1904.00962, algorithm 2).

    Only parameters with weight decay are scaled, as in the code that trained DeiT III: none with
    weight_decay=0, else the kernels. A bias that starts at zero would hardly move. Nor would a
    zero kernel, such as a head's: after an update of Adam's its norm would grow by at most a factor
    of 1 + lr per step. So a kernel that is zero when updated has the ratio 1 from
    then on: its updates are Adam's.
    """

    def init(_: jax.Array) -> TrustRatio:
        return TrustRatio(jnp.ones((), bool), jnp.ones((), jnp.float32))

    def update(update: Any, state: TrustRatio, param: Any) -> tuple[Any, TrustRatio]:
        norm, update_norm = optax.tree.norm(param), optax.tree.norm(update)
        adapts = state.adapts & (norm != 0)
        in_use = adapts & (update_norm != 0) & (weight_decay != 0)
        ratio = jnp.where(in_use, norm / jnp.where(in_use, update_norm, 1.0), 1.0)
        update = jax.tree.map(lambda u: ratio.astype(u.dtype) * u, update)
        return update, TrustRatio(adapts, ratio.astype(jnp.float32))

    from vit_jax.learning.optim import matrices

    one = optax.GradientTransformation(init, update)
    return optax.masked(matrices.per_matrix(one, joint=m.joint_qkv), kernels_only)


def mean_trust_ratio(opt_state: Any, is_frozen: Any = None) -> jax.Array:
    """Mean trust ratio of the last update, []; query, key and value count as their ratios do.

    is_frozen: masks as `patterns.Frozen` gives; what is frozen is left out. 0 if all are.
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, TrustRatio))
    (state,) = (x for x in leaves if isinstance(x, TrustRatio))
    ratios, masks = pytrees.flatten(state.ratio), pytrees.flatten(is_frozen)
    for name, mask in masks.items():
        if name in ratios:  # one for each layer, or for each layer's projections
            ratios[name] = ratios[name][~np.repeat(mask, len(ratios[name]) // mask.size)]
    kept = [x for x in ratios.values() if x.size]
    return jnp.mean(jnp.concatenate(kept)) if kept else jnp.zeros(())


# --- weight decay


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
    return pytrees.map_named(
        lambda name, _: name.split("/")[-1] == "kernel" or pytrees.is_adapter(name), params
    )


# Value of optim.weight_decay_on -> mask of what decays; torch.optim.AdamW alone decays all.
DECAYED = {"kernels": kernels_only, "all": None}


def add_decay(
    update_rule: optax.GradientTransformation,
    *,
    weight_decay: float,
    meaning: str,
    peak_lr: float,
    schedule: Schedule | None = None,
    on: str = "kernels",
) -> optax.GradientTransformation:
    """Adds decay of parameters before or after an update rule; still to be scaled by -lr(t).

    on: a key of DECAYED.

    schedule: lr(t), of a rule whose updates are scaled by -lr(t) already; the decay then is too.

    Raises UserError if it divides by a peak learning rate of 0.
    """
    factor = decay_per_lr(weight_decay, meaning, peak_lr)
    before = after = optax.identity()
    if weight_decay and WEIGHT_DECAY_MEANINGS[meaning].decoupled:
        scaled = factor if schedule is None else lambda step: -factor * schedule(step)
        after = optax.add_decayed_weights(scaled, mask=DECAYED[on])
    elif weight_decay:
        before = optax.add_decayed_weights(factor, mask=DECAYED[on])
    # Always three, so that the names of the optimizer's arrays do not depend on the decay.
    return optax.chain(before, update_rule, after)


def decay_per_lr(weight_decay: float, meaning: str, peak_lr: float) -> float:
    """The factor f in an update of -lr(t) * (u + f * p), with u from the update rule.

    A kernel loses lr(t) * f of itself where nothing follows the decay: for the decoupled meanings
    all optimizers but LAMB, for `coupled` SGD without momentum.
    """
    if not WEIGHT_DECAY_MEANINGS[meaning].over_peak or not weight_decay:
        return weight_decay
    if not peak_lr:
        raise UserError(f"optim.weight_decay_meaning={meaning!r} divides by optim.lr=0.")
    return weight_decay / peak_lr


# --- the table, and what is common to all


class Optimizer(NamedTuple):
    """The parts of an optimizer that differ from the others; `create` adds the rest."""

    update_rule: Callable[[Moments], optax.GradientTransformation]
    reads: tuple[str, ...]  # fields of Moments
    after_decay: Callable[[Moments, float], optax.GradientTransformation] | None = None  # and decay
    elementwise: bool = False  # whether an update depends on its own gradient and moments alone
    # Of updates that are multiplied by their learning rates already.
    velocity: Callable[[Moments], optax.GradientTransformation] | None = None


# A new one is a line here. Its update is written out in NumPy in tests/learning/optim, and held
# beside torch's or timm's where they have it.
OPTIMIZERS = {
    "adam": Optimizer(adam, ("b1", "b2", "eps", "mu_dtype"), elementwise=True),
    "nadam": Optimizer(nadam, ("b1", "b2", "eps", "mu_dtype"), elementwise=True),
    "sgd": Optimizer(sgd, ("momentum", "nesterov", "mu_dtype"), elementwise=True),
    "rmsprop": Optimizer(
        rms, ("b2", "eps", "momentum", "mu_dtype"), elementwise=True, velocity=velocity
    ),
    "adafactor": Optimizer(adafactor, ("b1", "b2", "mu_dtype")),
    "lion": Optimizer(lion, ("b1", "b2", "mu_dtype"), elementwise=True),
    "muon": Optimizer(muon, ("b1", "b2", "eps", "momentum", "nesterov", "mu_dtype")),
    "lamb": Optimizer(adam, ("b1", "b2", "eps", "joint_qkv", "mu_dtype"), trust_ratio),
}

MU_DTYPES = ("float32", "bfloat16")


def create(
    name: str,
    *,
    schedule: Schedule,
    peak_lr: float,
    weight_decay: float,
    weight_decay_meaning: str,
    weight_decay_on: str = "kernels",
    grad_clip_norm: float | None,
    **moments: Any,
) -> optax.GradientTransformation:
    """Creates our optimizer of this name; its updates are to be added to the parameters.

    Blocks stacked on a layer axis are updated independently, except that gradients are clipped by
    their global norm. `update` needs the parameters; it takes the norm of the gradients as
    `norm` from who has it already.
    """
    optimizer, averages = OPTIMIZERS[name], Moments(**moments)
    rule, rate = optimizer.update_rule(averages), optax.scale_by_learning_rate(schedule)
    after_decay = (
        [] if optimizer.after_decay is None else [optimizer.after_decay(averages, weight_decay)]
    )
    is_scaled = optimizer.velocity is not None
    if optimizer.velocity is not None:
        rule = optax.chain(rule, rate, optimizer.velocity(averages))
    decayed = add_decay(
        rule,
        weight_decay=weight_decay,
        meaning=weight_decay_meaning,
        peak_lr=peak_lr,
        schedule=schedule if is_scaled else None,
        on=weight_decay_on,
    )
    rest = [] if is_scaled else [rate]
    return optax.chain(clipping(grad_clip_norm), decayed, *after_decay, *rest)


def clipping(max_norm: float | None) -> optax.GradientTransformation:
    """`clip`, or nothing for None."""
    return optax.identity() if max_norm is None else clip(max_norm)


def clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Scales gradients down to a global L2 norm of `max_norm`, as optax.clip_by_global_norm.

    `update` takes their norm as `norm`, or else computes it.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, norm: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        norm = optax.tree.norm(updates) if norm is None else norm
        return jax.tree.map(
            lambda g: jnp.where(norm < max_norm, g, g / norm.astype(g.dtype) * max_norm), updates
        ), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def effective_weight_decay(
    name: str,
    opt_state: Any,
    lr: jax.Array | float,
    *,
    weight_decay: float,
    weight_decay_meaning: str,
    peak_lr: float,
    momentum: float,
    is_frozen: Any = None,
) -> jax.Array | float | None:
    """The fraction of itself that a kernel lost to decay in the last update, at rate `lr`.

    Exact for the decoupled meanings; for LAMB it is the mean over its kernels, since each is scaled
    by its trust ratio. With `coupled`, SGD's value holds once the velocity has built up; for other
    optimizers it is None: their update rules mix decay and gradient.

    opt_state: the whole optimizer's state after that update, however it is wrapped.
    is_frozen: masks as `patterns.Frozen` gives, of parameters that are not updated; None: all are.
    """
    if not weight_decay:
        return 0.0
    share = lr * decay_per_lr(weight_decay, weight_decay_meaning, peak_lr)
    if WEIGHT_DECAY_MEANINGS[weight_decay_meaning].decoupled:
        return share * mean_trust_ratio(opt_state, is_frozen) if name == "lamb" else share
    return share / (1 - momentum) if name == "sgd" else None
