"""One step of training, and one of evaluation: plain functions, compiled once over the mesh."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.core import axes
from vit_jax.core.pytrees import Layers, stack_layers, trained, with_statistics
from vit_jax.optim.patterns import stop_gradients
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.chips import compiler_options
from vit_jax.parallel.global_norm import global_norm
from vit_jax.training.method import Inputs, Others, view_names
from vit_jax.training.mixing import mix
from vit_jax.training.objective import Batch, Objective
from vit_jax.training.state import StateLayout, TrainState, random_stream

Scalars = dict[str, Any]


def examples(
    batch: Batch, objective: Objective, *, seed: int, step: jax.Array | int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The inputs of the update after `step` updates: a batch, normalised and mixed.

    Returns images [B, H, W, 3], targets [B, C] before label smoothing, weight [B]; all float32.
    """
    images, targets, weight = objective.inputs(batch)
    return mix(
        images,
        targets,
        weight,
        mixup_alpha=objective.mixup_alpha,
        cutmix_alpha=objective.cutmix_alpha,
        key=jax.random.fold_in(random_stream(seed, "mixing"), step),
    )


class LossAndGrads(NamedTuple):
    """The results of the forward and backward pass of a batch.

    Attributes:
      loss: float32 [], the mean over the batch that is minimised.
      grads: its gradients, nested as the parameters; before any clipping.
      numbers: [] each, by name, to be logged.
    """

    loss: jax.Array
    grads: Any
    numbers: dict[str, jax.Array]


def make_loss_and_grads(
    layout: StateLayout, objective: Objective, seed: int
) -> Callable[..., LossAndGrads]:
    """Returns loss_and_grads(state, batch, *layout.fixed) for the next update."""
    dropout, teacher = random_stream(seed, "dropout"), layout.teacher

    def loss_and_grads(state: TrainState, batch: Batch, *fixed: Any) -> LossAndGrads:
        images, targets, weight = examples(batch, objective, seed=seed, step=state.step)
        pixels = {} if objective.method is None else batch  # that no one reads are not carried on
        inputs = Inputs(images, objective.asked(targets), pixels, objective.views(batch))
        others = Others(
            nnx.merge(layout.graph, stack_layers(state.ema, Layers)) if state.ema else None,
            teacher=None if teacher is None else teacher.bind(*fixed),
            progress=objective.progress(state.step),
        )
        key = jax.random.fold_in(dropout, state.step)

        def mean_loss(params: Any, microbatch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            inputs, weights = microbatch
            params = stop_gradients(params, objective.freeze, objective.adapters)
            params = stack_layers(params, Layers)
            model = nnx.merge(layout.graph, params)
            losses, numbers = objective.learn(model, inputs, key, others)
            return jnp.sum(losses * weights), numbers

        loss, numbers, grads = _accumulated(
            jax.value_and_grad(mean_loss, has_aux=True),
            state.params,
            (inputs, objective.shares(targets, weight)),
            key,
            objective.grad_accum_steps,
        )
        weights = weight / jnp.maximum(jnp.sum(weight), 1e-9)
        return LossAndGrads(loss, grads, objective.numbers(numbers, targets, weights))

    return loss_and_grads


def make_update(
    layout: StateLayout,
    objective: Objective,
    rates: Callable[[Any, Any], Scalars],
    seed: int,
) -> Callable[..., tuple[TrainState, Scalars]]:
    """Returns update(state, batch, *layout.fixed) -> (state after one more step, scalars).

    To be compiled: `lower_update`.
    `rates` gives further scalars to log, such as the learning rate, from the number of updates done
    before and the optimizer's state after this one. A step whose loss or gradient is not finite
    changes neither parameters nor optimizer, and nor does any later step: the cause may be in the
    state already. The first such step is recorded in the state, on the device, so that nothing has
    to wait for it. A step whose gradient is finite and whose update is not is recorded as well, and
    is the last that changes the state: to know it before would take another pass over all of it.
    """
    loss_and_grads = make_loss_and_grads(layout, objective, seed)
    single_microbatch = objective.grad_accum_steps == 1

    def update(state: TrainState, batch: Batch, *fixed: Any) -> tuple[TrainState, Scalars]:
        loss, grads, numbers = loss_and_grads(state, batch, *fixed)
        # From here on every device works only on its shard of the optimizer's state.
        grads = jax.lax.with_sharding_constraint(grads, layout.update_shardings)
        norm = global_norm(trained(grads), trained(layout.gradients), exact=single_microbatch)
        updates, opt_state = layout.optimizer.update(
            trained(grads), state.opt_state, trained(state.params), norm=norm
        )
        updates = with_statistics(updates, grads)
        step = state.step + 1
        none_was_bad = state.first_bad_step == 0
        good = jnp.isfinite(loss) & jnp.isfinite(norm) & none_was_bad
        params = _where(good, optax.apply_updates(state.params, updates), state.params)
        ema = _next_ema(state, params, layout.ema_decay, objective)
        # Finite gradients can be divided by 0, or multiplied beyond float32.
        first_bad = none_was_bad & ~(good & _finite(params))
        after = TrainState(
            step=step,
            params=params,
            opt_state=_where(good, opt_state, state.opt_state),
            ema=_where(good, ema, state.ema),
            first_bad_step=jnp.where(first_bad, step, state.first_bad_step),
            first_bad_values=jnp.where(first_bad, jnp.stack([loss, norm]), state.first_bad_values),
        )
        scalars = {
            "train/loss": loss,
            **{f"train/{name}": x for name, x in numbers.items()},
            "train/grad_norm": norm,
            **rates(state.step, opt_state),
            # On all hosts: in training nothing else has weight 0.
            "skipped_images": jnp.sum(batch["weight"] == 0),
            **_first_bad(after),
        }
        return after, scalars

    return update


def skip_update(state: TrainState, batch: Batch, *fixed: Any) -> tuple[TrainState, Scalars]:
    """Replaces an update: the step is counted, its batch is ignored.

    Schedules and random numbers of later steps are as if the step had been trained on.
    """
    del batch, fixed
    step, scalars = _counted(state)
    return state._replace(step=step), scalars


@jax.jit
def _counted(state: TrainState) -> tuple[jax.Array, Scalars]:
    # Copies, since the state's own arrays are donated to the next update.
    return state.step + 1, jax.tree.map(jnp.copy, _first_bad(state))


def _first_bad(state: TrainState) -> Scalars:
    return {"first_bad_step": state.first_bad_step, "first_bad_values": state.first_bad_values}


def _accumulated(
    value_and_grad: Callable[..., Any],
    params: Any,
    batch: Any,
    key: jax.Array,
    grad_accum_steps: int,
) -> tuple[jax.Array, Any, Any]:
    """Loss, numbers of each example and gradients of a batch, computed in microbatches."""
    if grad_accum_steps == 1:
        (loss, numbers), grads = value_and_grad(params, batch, key)
        return loss, numbers, grads

    # Microbatch i has the examples i, i + grad_accum_steps, ...: every device has some of each.
    def microbatches_of(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, grad_accum_steps, *x.shape[1:]).swapaxes(0, 1)
        return axes.constrain(x, None, axes.BATCH, *(None,) * (x.ndim - 2))

    microbatches = jax.tree.map(microbatches_of, batch)

    def add(total: Any, each: Any) -> tuple[Any, Any]:
        microbatch, key = each
        (loss, numbers), grads = value_and_grad(params, microbatch, key)
        return jax.tree.map(jnp.add, total, (loss, grads)), numbers

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    keys = jax.random.split(key, grad_accum_steps)
    (loss, grads), numbers = jax.lax.scan(add, zero, (microbatches, keys))
    in_order = lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
    return loss, jax.tree.map(in_order, numbers), grads


def lower_update(
    update: Callable[..., tuple[TrainState, Scalars]],
    layout: StateLayout,
    batch: Batch,
) -> Any:
    """The lowered program of an update, ready for JAX's `compile`; its state is donated.

    It takes the arguments (state, batch, *layout.fixed).

    `batch` is of jax.ShapeDtypeStructs, as the layout is.
    """
    shardings = jax.tree.map(lambda x: x.sharding, layout.state)
    devices = layout.mesh.local_devices or layout.mesh.devices.flat  # of absent ones none is local
    device = devices[0]
    with jax.set_mesh(layout.mesh), axes.use_rules(meshes.RULES):
        jitted = jax.jit(
            update,
            donate_argnums=0,
            out_shardings=(shardings, meshes.replicated(layout.mesh)),
            compiler_options=supported_compiler_options(
                compiler_options(device.device_kind), device
            ),
        )
        return jitted.lower(layout.state, batch, *layout.fixed)


def supported_compiler_options(
    options: dict[str, str] | None, device: jax.Device
) -> dict[str, str] | None:
    """Those of the options that the device's compiler knows: other versions of it lack some.

    Asked with a program that does nothing, since a compiler refuses what it does not know.
    """
    mesh = Mesh(np.array([device]), ("device",))
    number = jax.ShapeDtypeStruct((), np.float32, sharding=meshes.replicated(mesh))
    while options:
        try:
            with jax.set_mesh(mesh):  # the caller's has all devices
                jax.jit(lambda x: x, compiler_options=options).lower(number).compile()
        except jax.errors.JaxRuntimeError as error:
            unknown = [name for name in options if f"'{name}'" in str(error)]
            if not unknown:
                raise
            options = {name: value for name, value in options.items() if name not in unknown}
        else:
            return options
    return None


def batch_layout(
    mesh: Mesh,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    views: Sequence[tuple[int, int]] = (),
    max_labels: int,
    weighted: bool = False,
) -> Batch:
    """Shapes and shardings of a batch as it arrives on the devices.

    `views` are the sizes of an image's further views; `max_labels` is K of objective.Batch;
    `weighted`: whether labels have weights.
    """
    sizes = {"image": image_size} | dict(zip(view_names(len(views)), views, strict=True))
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        **{name: ((batch_size, *size, 3), jnp.uint8) for name, size in sizes.items()},
        "labels": ((batch_size, max_labels), jnp.int32),
        "weight": ((batch_size,), jnp.float32),
    }
    if weighted:
        shapes["label_weights"] = ((batch_size, max_labels), jnp.float32)
    return {
        name: jax.ShapeDtypeStruct(
            shape,
            dtype,
            sharding=meshes.sharding(mesh, (axes.BATCH, *(None,) * (len(shape) - 1)), shape),
        )
        for name, (shape, dtype) in shapes.items()
    }


def _next_ema(state: TrainState, params: Any, decay: float | None, objective: Objective) -> Any:
    """The EMA after an update that gave `params`.

    By optim its decay is smaller at the beginning, or a run shorter than 1 / (1 - decay) steps
    would end with an average of mostly its first parameters.
    """
    if decay is None:
        return state.ema
    kept = objective.averaging(state.step)
    if kept is None:
        kept = jnp.minimum(decay, (1.0 + state.step) / (10.0 + state.step))
    return jax.tree.map(lambda a, p: a + (1.0 - kept) * (p - a), state.ema, params)


def _finite(tree: Any) -> jax.Array:
    """Whether all values are finite, []; XLA fuses these sums into the pass that writes them."""
    return jnp.isfinite(sum(jnp.sum(x * 0.0) for x in jax.tree.leaves(tree)))


def _where(condition: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
