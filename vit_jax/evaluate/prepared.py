"""A checkpoint's model, and the config that it is evaluated by, on their mesh."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import weights
from vit_jax.config import RunConfig
from vit_jax.core.screen import Screen
from vit_jax.run.parts import inputs, preprocessing
from vit_jax.run.parts.eval_data import ModelClasses
from vit_jax.weights.loading import Loaded


class Prepared(NamedTuple):
    """What an evaluation needs beside data.

    Attributes:
      config: prepares images as the weights say.
      graph: merges with `params` to the model.
      params: nested dictionaries of arrays.
    """

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


def prepare(config: RunConfig, checkpoint: epath.Path, screen: Screen, *, ema: bool) -> Prepared:
    """Reads the weights, or with `ema` their EMA, and tells what they change of the config.

    UserError: no checkpoint, or no EMA.
    """
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
    if getattr(loaded.model.spec, "probabilities", "") == "sigmoid" != config.loss.kind:
        of_loss = dataclasses.replace(config.loss, kind="sigmoid")
        config = dataclasses.replace(config, loss=of_loss)
        said.append("loss     loss.kind=sigmoid, as the weights say")
    for line in said:
        screen.say(line)
    classes = ModelClasses(loaded.model.num_classes, loaded.class_names, assumed=bool(notice))
    graph, variables = nnx.split(loaded.model, nnx.Param)
    return Prepared(config, mesh, loaded, classes, graph, nnx.to_pure_dict(variables))
