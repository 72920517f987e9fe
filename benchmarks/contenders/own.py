"""This project's training step, built as train.py builds it, and its forward pass.

Attention's softmax and the statistics of norms are in float32, results of norms in the dtype of the
computation, with epsilon 1e-6. Of the last block only the class token is computed, behind its keys
and values. An update that is not finite is skipped. No dropout.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import contenders
from benchmarks.contenders import Contender, Shape
from benchmarks.contenders.jax_common import compiled, contender, images_and_labels
from vit_jax import config as configs
from vit_jax import models
from vit_jax.config import RunConfig
from vit_jax.learning.clock import InFlightSteps
from vit_jax.learning.losses import batch_layout
from vit_jax.learning.state import StateLayout
from vit_jax.learning.step import Scalars, lower_update, make_update
from vit_jax.run.parts import inputs, updates
from vit_jax.run.parts.durations import make_durations

# What a config takes from the data, and models.create as arguments.
OF_INPUT = ("num_classes", "image_size")


class Parts(NamedTuple):
    """The parts of a run that has no data: nothing is compiled or allocated."""

    layout: StateLayout
    arrays: dict[str, jax.ShapeDtypeStruct]  # of a batch
    update: Any

    def lower(self) -> Any:
        """The step, lowered."""
        return lower_update(self.update, self.layout.in_steps, self.arrays)

    def on_devices(self, images: np.ndarray, labels: np.ndarray) -> dict[str, jax.Array]:
        """A batch from uint8 [B, H, W, 3] and int32 [B]."""
        host = {
            "image": images,
            "labels": labels[:, None],
            "weight": np.ones(len(labels), np.float32),
        }
        return {name: jax.device_put(host[name], x.sharding) for name, x in self.arrays.items()}


class Loss:
    """The loss of a step, which float() waits for. FloatingPointError once a step was not finite.

    Such a step changes nothing, and nor do its successors: their losses are finite.
    """

    def __init__(self, scalars: Scalars) -> None:
        self._scalars = scalars

    def __float__(self) -> float:
        if bad := int(self._scalars["first_bad_step"]):
            raise FloatingPointError(f"the loss or the gradients of step {bad} are not finite")
        return float(self._scalars["train/loss"])


def settings(shape: Shape) -> dict[str, Any]:
    """The config of all that contenders share, but for the model."""
    return {
        "input": {"batch_size": shape.batch, "num_classes": shape.classes},
        "optim": {
            "lr": contenders.LEARNING_RATE,
            "schedule": "cosine",
            "warmup_steps": contenders.WARMUP_STEPS,
            "weight_decay": contenders.WEIGHT_DECAY,
            "grad_clip_norm": contenders.CLIP_NORM,
        },
        "total": {"steps": contenders.TOTAL_STEPS},
    }


def parts(shape: Shape, dtype: str, fields: Sequence[str] = ()) -> Parts:
    """The parts of a run; `fields` of its config override what all contenders share."""
    config = configs.resolve(settings(shape), fields)

    def make_model(rngs: nnx.Rngs) -> nnx.Module:
        return _model(shape, dtype, config, rngs)

    mesh = inputs.mesh(config.mesh)
    plan = make_durations(config, num_examples=shape.batch)
    schedule = updates.schedule(config.optim, plan)
    layout = updates.layout(config, make_model, schedule, mesh)
    objective = updates.objective(config, num_classes=shape.classes)
    arrays = batch_layout(
        mesh,
        batch_size=shape.batch,
        image_size=(shape.image_px, shape.image_px),
        max_labels=1,
    )
    logged = updates.rates(config.optim, schedule)
    update = make_update(layout.in_steps, objective, logged, seed=0)
    return Parts(layout, arrays, update)


def make(shape: Shape, dtype: str, fields: Sequence[str] = ()) -> Contender:
    """Builds the contender."""
    run = parts(shape, dtype, fields)
    executable, compile_secs = compiled(run.lower())
    batch = run.on_devices(*images_and_labels(shape))
    state = run.layout.in_steps.init(0)
    in_flight = InFlightSteps(run.layout.mesh.devices.flat[0].platform)

    def step() -> Loss:
        nonlocal state
        state, scalars = executable(run.layout.unstack_layers(state), batch)
        in_flight.add(scalars)
        return Loss(scalars)

    return contender(step, dtype, executable, compile_secs)


def make_forward(shape: Shape, dtype: str, fields: Sequence[str] = ()) -> Contender:
    """Builds the forward pass of a model whose parameters are in `dtype`, for one device."""
    config = configs.resolve({}, fields)
    model = _model(shape, dtype, config, nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    params = jax.tree.map(lambda p: p.astype(jnp.dtype(dtype)), nnx.to_pure_dict(params))
    uint8, _ = images_and_labels(shape)
    images = jnp.asarray(uint8, jnp.float32) / 127.5 - 1.0

    def logits(params: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = nnx.merge(graph, params)(images)
        return out, out.sum()

    executable, compile_secs = compiled(jax.jit(logits).lower(params, images))
    step = lambda: executable(params, images)[1]
    return contender(step, dtype, executable, compile_secs)


def _model(shape: Shape, dtype: str, config: RunConfig, rngs: nnx.Rngs) -> nnx.Module:
    """The model of a shape, with the fields of it that the config sets."""
    given = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    del given["name"]  # the config's default; the shape names it
    return models.create(**shape.of_models(), dtype=dtype, **given, rngs=rngs)
