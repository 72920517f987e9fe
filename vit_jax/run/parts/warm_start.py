"""Initialisation from trained parameters instead of random ones (section 3.2).

With head="reset" everything up to the last norm is taken; the rest is fresh, and parts that the
new model lacks (class token, pooling, pre-logits) are dropped. With head="keep" the model must be
the same. In both cases learned positions are resized for images of another size, low-rank adapters
are fresh: at first they change nothing, and so is what a method of pre-training adds.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import weights
from vit_jax.config import InitConfig, RunConfig
from vit_jax.core import class_names, pytrees, synsets
from vit_jax.core.errors import Attempt, UserError
from vit_jax.core.pytrees import METHOD_PARAMS
from vit_jax.core.screen import Screen
from vit_jax.data.source import Source
from vit_jax.learning.state import StateLayout, TrainState
from vit_jax.models import ModelInfo, hidden_fields
from vit_jax.models.layers.resized_positions import is_offsets, is_table, places_axis, resize
from vit_jax.run import announce
from vit_jax.run.parts.networks import Model, trained_weights
from vit_jax.run.parts.updates import StepParts

# Parts that the weights may have and a model with a fresh head may lack.
OPTIONAL = frozenset(
    {"cls", "pooling", "pre_logits", "projection", "distillation_token", "distillation_position"}
)
HEADS = {"head", "distillation_head"}

Shapes = dict[str, tuple[int, ...]]


def initial_state(
    config: RunConfig,
    layout: StateLayout,
    model: ModelInfo,
    trained: weights.CheckpointInfo | None,
    screen: Screen,
) -> TrainState:
    """The state after 0 steps: from scratch, or with the parameters of `trained`."""
    state, init = layout.init(config.seed), config.init
    if trained is None:
        return state
    resize = init.position_resize
    rest: dict[str, Any] = {"head": init.head, "ema": init.ema, "channels": init.channels}
    state = warm_start(state, trained, model, position_resize=resize, **rest)
    announce.warm_start(screen, trained, model)
    return layout.with_params(state, state.params)


def warm_start(
    fresh: TrainState,
    trained: weights.CheckpointInfo,
    model: ModelInfo,
    *,
    head: str,
    position_resize: str,
    ema: bool,
    channels: str | None = None,
) -> TrainState:
    """`fresh` with trained parameters, sharded as in `fresh`.

    head="keep" takes the head from the checkpoint too, "reset" leaves the fresh one; `ema` takes
    the EMA of its parameters; `position_resize` is "bilinear" or "bicubic"; `channels` as in
    `shapes_to_take`.
    """
    fresh_params = pytrees.flatten(fresh.params)
    shapes = shapes_to_take(fresh.params, trained, model, head=head, ema=ema, channels=channels)
    # Positions, which still have another shape, are read whole: replicated on every device, as the
    # step is.
    layout = {
        name: jax.ShapeDtypeStruct(
            shape,
            fresh_params[name].dtype,
            sharding=(fresh.step if is_reshaped(name) else fresh_params[name]).sharding,
        )
        for name, shape in shapes.items()
    }
    taken = trained.read(layout, ema=ema)
    _check_finite(taken, trained)
    for name in filter(is_stem, shapes):
        wanted = fresh_params[name]
        adapt = jax.jit(
            functools.partial(adapt_channels, channels=wanted.shape[2]),
            out_shardings=wanted.sharding,
        )
        taken[name] = adapt(taken[name])
    for name in filter(is_table, shapes):
        resize_table = jax.jit(
            lambda table, name=name: resize(
                name, table, trained.tokens, model.tokens, method=position_resize
            ),
            out_shardings=fresh_params[name].sharding,
        )
        taken[name] = resize_table(taken[name])
    return fresh._replace(params=pytrees.unflatten(fresh_params | taken))


def is_stem(name: str) -> bool:
    """Returns whether it is the kernel [rows, columns, channels, width] that sees images."""
    return name == "patches/kernel" or name.endswith("root/conv/kernel")


def is_reshaped(name: str) -> bool:
    """Returns whether the parameter may have another shape in the weights."""
    return is_table(name) or is_stem(name)


def adapt_channels(kernel: jax.Array, *, channels: int) -> jax.Array:
    """[P, P, 3, D] -> [P, P, channels, D], as timm's adapt_input_conv; as it is if these agree.

    One channel gets the sum of three; more or two repeat them, times 3 / channels: a gray image in
    all channels gives what it gave in three.
    """
    if channels == kernel.shape[2]:
        return kernel
    if channels == 1:
        return kernel.sum(2, keepdims=True)
    repeated = jnp.tile(kernel, (1, 1, -(-channels // 3), 1))[:, :, :channels]
    return repeated * (3 / channels)


def _check_finite(taken: Mapping[str, jax.Array], trained: weights.CheckpointInfo) -> None:
    """Raises UserError that names an array; the first step would only report a NaN loss."""
    finite = jax.device_get(
        jax.jit(lambda x: jax.tree.map(lambda a: jnp.isfinite(a).all(), x))(taken)
    )
    bad = [name for name, is_finite in finite.items() if not is_finite]
    if bad:
        raise UserError(
            f"init.weights={trained.origin}: {len(bad)} of {len(taken)} arrays are not finite, "
            f"{bad[0]} first."
        )


def shapes_to_take(
    params: Any,
    trained: weights.CheckpointInfo,
    model: ModelInfo,
    *,
    head: str,
    ema: bool,
    channels: str | None = None,
) -> Shapes:
    """The parameters that `warm_start` takes, and their shapes in the checkpoint; none is read.

    `params` may be a tree of ShapeDtypeStructs; `channels`: "repeat" takes kernels of 3 for others.
    UserError as in `warm_start`.
    """
    there, here = (each.get("channels", 3) for each in (vars(trained.spec), model.spec))
    if there != here and (there != 3 or channels is None):
        cure = "Set init.channels=repeat, as timm does." if there == 3 else ""
        rule = f"has {there} channels, the data {here}."
        raise UserError(rule, field="init.weights", value=trained.origin, cure=cure)
    ours, theirs = pytrees.flatten(params), trained.param_shapes(ema=ema)
    stays_fresh: set[str] = set()
    left_out: set[str] = set()
    if head == "reset":
        our_parts, their_parts = set(map(_part, ours)), set(map(_part, theirs))
        stays_fresh = HEADS | ({"pooling"} - their_parts)
        left_out = HEADS | (OPTIONAL - our_parts)
    stays_fresh.add(METHOD_PARAMS)
    left_out.add(METHOD_PARAMS)
    wanted = {
        name: x.shape
        for name, x in ours.items()
        if _part(name) not in stays_fresh and not pytrees.is_adapter(name)
    }
    offered = {n: s for n, s in theirs.items() if _part(n) not in left_out}
    _check(trained, model, wanted, offered)
    return {name: theirs[name] for name in wanted}


def open_weights(
    config: RunConfig, step: StepParts, source: Source, attempt: Attempt
) -> tuple[weights.CheckpointInfo, Shapes]:
    """The description of init.weights, and shapes of the arrays that are taken from them."""
    c = config.init
    # With model.name=None the model was made from them: their errors are reported already.
    needed = [step.model] if config.model.name is None else []
    trained = attempt("init", trained_weights, c, after=needed)
    shapes = attempt("init", shapes_by_config, c, trained, step.layout, step.model)
    attempt("init", check_head, c, trained, source, after=[shapes])
    return trained, shapes


def shapes_by_config(
    c: InitConfig, trained: weights.CheckpointInfo, layout: StateLayout, model: Model
) -> Shapes:
    """The same by the section `init` of a config, for the run's model."""
    rest: dict[str, Any] = {"head": c.head, "ema": c.ema, "channels": c.channels}
    return shapes_to_take(layout.state.params, trained, model.info, **rest)


def check_head(c: InitConfig, trained: weights.CheckpointInfo, source: Source) -> None:
    """Raises UserError if a head is kept whose classes have other names than those of the data."""
    names = source.class_names
    if c.head != "keep" or not names or not trained.class_names:
        return
    theirs, in_order = trained.class_names, tuple(range(len(names)))
    if class_names.agree(names, theirs) or synsets.places(names, theirs) == in_order:
        return
    raise UserError(
        f"init.head=keep: {class_names.difference(names, theirs)} in init.weights={c.weights}. Set "
        "init.head=reset."
    )


def _part(name: str) -> str:
    """The first part of a name: "head/kernel" -> "head"."""
    return name.split("/", maxsplit=1)[0]


def _check(
    trained: weights.CheckpointInfo, model: ModelInfo, wanted: Shapes, offered: Shapes
) -> None:
    """Raises UserError that lists all differences, and how to resolve them."""
    names = [*wanted, *(n for n in offered if n not in wanted)]
    shaped = [n for n in names if _shape(n, wanted) != _shape(n, offered)]
    same_grid = trained.tokens.grid == model.tokens.grid
    moved = [n for n in names if is_offsets(n) and not same_grid]  # perhaps of the same shape
    differing = list(dict.fromkeys([*shaped, *moved]))
    hidden = hidden_fields()
    if HEADS & set(map(_part, wanted)):
        hidden.append("unit_features")
    theirs = {f: getattr(trained.spec, f, None) for f in hidden}
    ours = {f: model.spec.get(f) for f in hidden}
    fields = [f for f in hidden if theirs[f] != ours[f]]
    if not differing and not fields:
        return
    lines = [f"model.{f}: {theirs[f]} there, {ours[f]} here" for f in fields]
    lines += [
        f"{n}: {offered.get(n, 'nothing')} there, {wanted.get(n, 'nothing')} here" for n in shaped
    ]
    parts = set(map(_part, differing))
    if any(map(is_offsets, differing)):
        lines.append(
            "Offsets (model.position_embedding=relative) cannot be resized: keep the size of the "
            "weights' images."
        )
    if parts & HEADS:
        lines.append("A head over other classes is left out by --config.init.head=reset.")
    if "pre_logits" in parts:
        has_it = str("pre_logits/kernel" in offered).lower()
        lines.append(f"--config.model.pre_logits={has_it} is what the weights have.")
    if fields or parts - HEADS - {"pre_logits"}:
        lines.append(
            "--config.model.name=none, and nothing else in model.* that changes the architecture, "
            "takes it from the weights."
        )
    raise UserError(f"init.weights={trained.origin} does not fit:\n  " + "\n  ".join(lines))


def _shape(name: str, shapes: Shapes) -> tuple[int, ...] | None:
    """The part of a shape that must agree: the number of positions or channels may differ."""
    shape = shapes.get(name)
    if not shape or not is_reshaped(name):
        return shape
    if is_stem(name):
        return (*shape[:2], *shape[3:])
    axis = places_axis(name)
    return (*shape[:axis], *shape[axis + 1 :])
