"""Update rules: from gradients to updates, before learning rate and decoupled weight decay.

All treat stacked blocks separately; a rule that is not elementwise sees one matrix at a time
(optim/matrices.py).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import is_stacked
from vit_jax.optim import matrices
from vit_jax.optim.decay import kernels_only

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
    mu_dtype: str | None  # dtype of the stored first moment or momentum; None: the parameters'


def adam(m: Moments) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1)."""
    return optax.scale_by_adam(m.b1, m.b2, m.eps, mu_dtype=m.mu_dtype)


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
    """

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
        in_blocks = lambda name, kernel: "muon" if kernel and is_stacked(name) else "adam"
        return pytrees.map_named(in_blocks, kernels_only(params))

    return optax.partition({"muon": optax.chain(orthogonal, scaled), "adam": adam(m)}, labels)


class TrustRatio(NamedTuple):
    """LAMB's state for one matrix.

    Attributes:
      adapts: bool [], whether it has a trust ratio: it was never zero.
      ratio: float32 [], the last update's trust ratio; 1 if it has none.
    """

    adapts: Any
    ratio: Any


def trust_ratio(m: Moments, weight_decay: float) -> optax.GradientTransformation:
    """Scales each kernel's update to the kernel's norm (LAMB, arXiv 1904.00962, algorithm 2).

    Only parameters with weight decay are scaled, as in the code that trained DeiT III: none with
    weight_decay=0, else the kernels. A bias that starts at zero would hardly move. Nor would a
    zero kernel, such as a head's: its norm would be lr after the first update and then grow by at
    most a factor of 1 + lr per step. So a kernel that is zero when updated has the ratio 1 from
    then on: its updates are Adam's.

    Raises:
      UserError: for a joint ratio where none has one.
    """
    if m.joint_qkv and not weight_decay:
        raise UserError(
            "optim.joint_qkv=True is not read by optim.name=lamb with optim.weight_decay=0, which "
            "has no trust ratios: set optim.joint_qkv=False, or optim.weight_decay above 0."
        )

    def init(_: jax.Array) -> TrustRatio:
        return TrustRatio(jnp.ones((), bool), jnp.ones((), jnp.float32))

    def update(update: jax.Array, state: TrustRatio, param: jax.Array) -> tuple[Any, TrustRatio]:
        norm, of_update = jnp.linalg.norm(param), jnp.linalg.norm(update)
        adapts = state.adapts & (norm != 0)
        in_use = adapts & (of_update != 0) & (weight_decay != 0)
        ratio = jnp.where(in_use, norm / jnp.where(in_use, of_update, 1.0), 1.0)
        return ratio.astype(update.dtype) * update, TrustRatio(adapts, ratio.astype(jnp.float32))

    one = optax.GradientTransformation(init, update)
    return optax.masked(matrices.per_matrix(one, joint=m.joint_qkv), kernels_only)


def mean_trust_ratio(opt_state: Any) -> jax.Array:
    """Mean trust ratio of the last update, []; query, key and value count as their ratios do."""
    is_it = lambda x: isinstance(x, TrustRatio)
    (state,) = filter(is_it, jax.tree.leaves(opt_state, is_leaf=is_it))
    return jnp.mean(jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(state.ratio)]))
