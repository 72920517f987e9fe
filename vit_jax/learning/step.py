"""A training step: loss, gradients, clipping, update, EMA, and a guard against NaN and infinity."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from vit_jax.core import axes
from vit_jax.core.pytrees import group_layers, with_statistics, without_statistics
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.method import StepContext
from vit_jax.learning.mixing import mix
from vit_jax.learning.state import StateLayout, TrainState, pure_dict, random_stream
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel import zero1
from vit_jax.parallel.chips import compiler_options, supported_compiler_options
from vit_jax.parallel.global_norm import global_norm

Scalars = dict[str, Any]


def examples(
    batch: Batch, objective: Objective, *, seed: int, done: jax.Array | int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A batch (losses.Batch), normalised, and mixed as in the update after `done` others.

    Returns images [B, H, W, 3], targets [B, C] before label smoothing, weight [B]; all float32.
    """
    return mix(
        *objective.inputs(batch),
        objective.loss,
        key=jax.random.fold_in(random_stream(seed, "mixing"), done),
        progress=objective.progress(jnp.asarray(done)),
    )


class LossAndGrads(NamedTuple):
    """The results of the forward and backward pass of a batch."""

    loss: jax.Array  # float32 [], the mean over the batch that is minimised
    grads: Any  # its gradients, nested as the parameters; before any clipping
    metrics: dict[str, jax.Array]  # [] each, by name, to be logged
    method_state: Any  # that of the method after this step


def make_loss_and_grads(
    layout: StateLayout, objective: Objective, seed: int
) -> Callable[..., LossAndGrads]:
    """Returns loss_and_grads(state, batch, *layout.teacher_params) for the next update."""
    dropout, teacher = random_stream(seed, "dropout"), layout.teacher
    # ZeRO-1. Without mesh.shard_optimizer both functions return their argument.
    layouts = layout.state.params, layout.computed  # between steps, and in one
    gather = lambda params: zero1.gather(params, *layouts)
    pin_layouts = lambda params: zero1.pin_kernel_layouts(params, *layouts, layout.gradients)

    def merged(params: Any) -> nnx.Module:
        # Layers that are arrays of their own (StateLayout.unstacked_steps) are grouped, not copied.
        return nnx.merge(layout.graph, group_layers(params))

    def loss_and_grads(state: TrainState, batch: Batch, *teacher_params: Any) -> LossAndGrads:
        images, targets, weight = examples(batch, objective, seed=seed, done=state.step)
        inputs = objective.step_inputs(batch, images, targets)
        context = StepContext(
            # For methods; XLA drops it where the loss does not read it.
            averaged=merged(gather(state.ema)) if state.ema else None,
            teacher=None if teacher is None else teacher.bind(*teacher_params),
            progress=objective.progress(state.step),
            label_losses=objective.label_losses,
            state=nnx.merge(layout.method_graph, state.method_state),
        )

        def mean_loss(params: Any, microbatch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            inputs, loss_weights = microbatch
            params = objective.stop_gradients(pin_layouts(params))
            output = objective.method.loss(merged(params), inputs, key, context)
            return jnp.sum(output.losses * loss_weights), (output.metrics, output.observed)

        # The weights of losses are normalised over the whole batch, so losses and gradients of
        # microbatches are added. With input.on_bad_image=skip a bad image weighs 0, in losses and
        # metrics.
        loss, (arrays, observed), grads = _accumulated(
            jax.value_and_grad(mean_loss, has_aux=True),
            gather(state.params),
            (inputs, objective.loss_weights(targets, weight)),
            jax.random.fold_in(dropout, state.step),
            objective.grad_accum_steps,
        )
        metric_weights = weight / jnp.maximum(jnp.sum(weight), 1e-9)
        method_state = objective.method.next_state(context.state, observed, context)
        return LossAndGrads(
            loss, grads, objective.metrics(arrays, metric_weights), pure_dict(method_state)
        )

    return loss_and_grads


def make_update(
    layout: StateLayout, objective: Objective, rates: Callable[[Any, Any], Scalars], seed: int
) -> Callable[..., tuple[TrainState, Scalars]]:
    """Returns update(state, batch, *layout.teacher_params) -> (state after one more step, scalars).

    To be compiled by `lower_update`. `rates` gives further scalars to log, such as the
    learning rate, from the number of updates done before and the optimizer's state after this one.

    If the loss or the norm of the gradients is not finite, this step and all later ones leave
    parameters, optimizer and EMA as they were, since the cause may be in the state already; only
    the step's number goes on. The state records the first such step, so that the host need not
    wait for each one. An update that overflows although its gradients are finite (eps=0, or a huge
    rate) is recorded too, but applied: to withhold it would take another pass over the state.
    """
    loss_and_grads = make_loss_and_grads(layout, objective, seed)

    def update(state: TrainState, batch: Batch, *teacher_params: Any) -> tuple[TrainState, Scalars]:
        loss, grads, metrics, method_state = loss_and_grads(state, batch, *teacher_params)
        # From here on gradients lie as the state does: whole, or divided (fsdp, tensor, ZeRO-1).
        grads = jax.lax.with_sharding_constraint(grads, layout.update_shardings)
        norm = global_norm(
            without_statistics(grads),
            without_statistics(layout.gradients),
            lossless_cast=not objective.sums_gradients,  # sums need more bits than that dtype has
        )
        # The optimizer clips by this norm. The running statistics of batch norms pass it by: their
        # "gradients" are what the step subtracts from them (core/pytrees.py).
        updates, opt_state = layout.optimizer.update(
            without_statistics(grads), state.opt_state, without_statistics(state.params), norm=norm
        )
        params = optax.apply_updates(state.params, with_statistics(updates, grads))

        # The guard (see the docstring).
        step = state.step + 1
        none_was_bad = state.first_bad_step == 0
        good = jnp.isfinite(loss) & jnp.isfinite(norm) & none_was_bad
        params = _where(good, params, state.params)
        ema = state.ema
        if layout.ema_decay is not None:
            decay = objective.ema_decay(layout.ema_decay, state.step)
            ema = layout.average(ema, decay, params, opt_state)
        is_first_bad = none_was_bad & ~(good & _finite(params))
        after = TrainState(
            step=step,
            params=params,
            opt_state=_where(good, opt_state, state.opt_state),
            ema=_where(good, ema, state.ema),
            method_state=_where(good, method_state, state.method_state),
            first_bad_step=jnp.where(is_first_bad, step, state.first_bad_step),
            first_bad_values=jnp.where(
                is_first_bad, jnp.stack([loss, norm]), state.first_bad_values
            ),
        )
        scalars = {
            "train/loss": loss,
            **{f"train/{name}": x for name, x in metrics.items()},
            "train/grad_norm": norm,
            **rates(state.step, opt_state),
            # Of all hosts. Nothing else weighs 0: training batches have no padding.
            "skipped_images": jnp.sum(batch["weight"] == 0),
            **after.first_bad,
        }
        return after, scalars

    return update


def lower_update(
    update: Callable[..., tuple[TrainState, Scalars]], layout: StateLayout, batch: Batch
) -> Any:
    """The lowered program of an update, ready for JAX's `compile`; its state is donated.

    It takes the arguments (state, batch, *layout.teacher_params).
    """
    shardings = jax.tree.map(lambda x: x.sharding, layout.state)
    devices = layout.mesh.local_devices or layout.mesh.devices.flat  # of absent ones none is local
    device = devices[0]
    with jax.set_mesh(layout.mesh), axes.use_rules(meshes.RULES):
        jitted = jax.jit(
            update,
            donate_argnums=0,
            out_shardings=(shardings, meshes.replicated(layout.mesh)),
            compiler_options=supported_compiler_options(compiler_options(device), device),
        )
        return jitted.lower(layout.state, batch, *layout.teacher_params)


def _accumulated(
    value_and_grad: Callable[..., Any],
    params: Any,
    batch: Any,
    key: jax.Array,
    grad_accum_steps: int,
) -> tuple[jax.Array, Any, Any]:
    """The loss, each example's arrays and the gradients of a batch, by way of microbatches.

    Beside the arrays there is what the method has observed, with an axis of microbatches.
    """
    if grad_accum_steps == 1:
        (loss, (arrays, observed)), grads = value_and_grad(params, batch, key)
        return loss, (arrays, jax.tree.map(lambda x: x[None], observed)), grads

    # Microbatch i has the examples i, i + grad_accum_steps, ...: every device has some of each.
    def microbatches_of(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, grad_accum_steps, *x.shape[1:]).swapaxes(0, 1)
        return axes.constrain(x, None, axes.BATCH, *(None,) * (x.ndim - 2))

    microbatches = jax.tree.map(microbatches_of, batch)

    def add(total: Any, microbatch_and_key: Any) -> tuple[Any, Any]:
        microbatch, key = microbatch_and_key
        (loss, arrays), grads = value_and_grad(params, microbatch, key)
        return jax.tree.map(jnp.add, total, (loss, grads)), arrays

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    keys = jax.random.split(key, grad_accum_steps)
    (loss, grads), (arrays, observed) = jax.lax.scan(add, zero, (microbatches, keys))
    in_order = lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
    return loss, (jax.tree.map(in_order, arrays), observed), grads


def _finite(tree: Any) -> jax.Array:
    """Whether all values are finite, []; XLA fuses these sums into the pass that writes them."""
    return jnp.isfinite(sum(jnp.sum(x * 0.0) for x in jax.tree.leaves(tree)))


def _where(condition: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
