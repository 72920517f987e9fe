"""A checkpoint's model, and the config that it is evaluated by, on their mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import config as configs
from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.evals.kind import SplitReader
from vit_jax.learning.losses import LossConfig, Sigmoid
from vit_jax.models import head, inference
from vit_jax.models.layers.linear import DTYPES, quantise
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts import evaluations, inputs, preprocessing, updates
from vit_jax.run.parts.eval_data import EvalData, ModelClasses
from vit_jax.store.workdir import read_document
from vit_jax.weights.loading import Loaded


class Prepared(NamedTuple):
    """The model, and all else that an evaluation needs beside data."""

    config: RunConfig
    mesh: Mesh
    loaded: Loaded
    classes: ModelClasses
    graph: nnx.GraphDef
    params: Any

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images that the model takes."""
        return self.loaded.model.preprocess.image_size

    def model(self) -> Any:
        """The model as it computes, all of it in this process."""
        gather = jax.jit(lambda x: x, out_shardings=meshes.replicated(self.mesh))
        return nnx.merge(self.graph, jax.device_get(gather(self.params)))


def prepare(config: RunConfig, checkpoint: epath.Path, screen: Screen, *, ema: bool) -> Prepared:
    """Reads the weights, or with `ema` their EMA, and tells what they change of the config."""
    mesh = inputs.mesh(config.mesh)
    loaded, notice = weights.with_class_names(
        weights.load_with_info(checkpoint, ema=ema, mesh=mesh)
    )
    if notice:
        screen.note(notice)
    classifies = any(c.classifies for c in config.evals.values())
    if classifies and loaded.model.num_classes and weights.is_external(checkpoint):
        weights.check_head(loaded, str(checkpoint))
    config, said = preprocessing.as_weights_say(config, loaded.model.preprocess)
    if head.has_sigmoids(loaded.model.spec) and config.loss.exclusive:
        config = dataclasses.replace(config, loss=_loss_of(checkpoint))
        said.append(f"loss     loss.kind={config.loss.kind}, as the weights say")
    for line in said:
        screen.say(line)
    classes = ModelClasses(loaded.model.num_classes, loaded.class_names, assumed=bool(notice))
    return Prepared(config, mesh, loaded, classes, *_parts(loaded.model))


def _loss_of(checkpoint: epath.Path) -> LossConfig:
    """The loss of each class by itself that weights were trained with, with its fields.

    The plain one where no work directory says another, or the plug-in that it is of is not here.
    """
    with contextlib.suppress(UserError):
        values = read_document(checkpoint.parent.parent)["config"]["loss"]
        loss = configs.resolve({"loss": values}).loss
        if not loss.exclusive:
            return loss
    return Sigmoid()


def in_dtype(ready: Prepared, dtype: str | None, data: EvalData, *, int8: bool = False) -> Prepared:
    """The same, computed as --dtype says: with "auto" as suits the first batch of these data.

    With `int8` kernels of dense layers have 8 bits (models/layers/linear.py).

    UserError: "auto" for a model without a head, which has no probabilities.
    """
    model = ready.loaded.model
    by_dtype = {
        each: _parts(quantise(one) if int8 else one)
        for each, one in inference.in_dtypes(model, dtype).items()
    }
    if dtype != inference.AUTO:
        ((graph, params),) = by_dtype.values()
        return ready._replace(graph=graph, params=params)
    if not model.num_classes:
        raise UserError(f"--dtype=auto needs a head: give --dtype={' or --dtype='.join(DTYPES)}.")
    objective = updates.objective(ready.config, num_classes=model.num_classes)

    def of_batch(model: Any, batch: Any) -> dict[str, jax.Array]:
        return {"probabilities": head.probabilities(model, model(objective.images(batch)))}

    feed, _ = data.open_feed()
    with feed:
        batch = next(iter(feed))

    def compute(reader: SplitReader, params: Any) -> jax.Array:
        return reader.compute_batch(params, batch)["probabilities"]

    readers = {
        each: evaluations.reader(data, graph, ready.mesh)(of_batch)
        for each, (graph, _) in by_dtype.items()
    }
    timed = {
        each: functools.partial(compute, reader, by_dtype[each][1])
        for each, reader in readers.items()
    }
    graph, params = by_dtype[inference.fastest_dtype(timed, ready.loaded.name)]
    return ready._replace(graph=graph, params=params)


def _parts(model: Any) -> tuple[nnx.GraphDef, Any]:
    """The graph of a model, and its parameters in nested dictionaries."""
    graph, variables = nnx.split(model, nnx.Param)
    return graph, nnx.to_pure_dict(variables)
