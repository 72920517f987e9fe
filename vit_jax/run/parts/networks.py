"""The model of a run, and its description in checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from vit_jax import models, weights
from vit_jax.config import InitConfig, LoraConfig, RunConfig
from vit_jax.core import errors
from vit_jax.core.pytrees import METHOD_PARAMS
from vit_jax.data.source import Source
from vit_jax.learning.method import Method, Sizes
from vit_jax.learning.methods import SUPERVISED
from vit_jax.models.adapters import Adapters, add
from vit_jax.models.layers.kernels.choice import XLA
from vit_jax.run.parts.pins import prefix_field
from vit_jax.run.parts.preprocessing import as_preprocess, image_size, view_sizes
from vit_jax.weights.description import describe


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that is not built yet.

    Attributes:
      make: nnx.Rngs -> module.
      info: its name, parameters, FLOPs and fields.
      preprocess: the preparation of images for prediction, and so their size.
      num_classes: of its head; 0: it has none.
      adapters: of its kernels; None: they are trained themselves.
      make_counted: as `make`, of a program that has all products of the blocks, each once: in a
        scan, with attention by XLA.
    """

    make: Callable[[nnx.Rngs], nnx.Module]
    info: models.ModelInfo
    preprocess: models.Preprocess
    num_classes: int
    adapters: Adapters | None
    make_counted: Callable[[nnx.Rngs], nnx.Module]


def model(config: RunConfig, *, num_classes: int, several_labels: bool = False) -> Model:
    """The model of the run for data of so many classes; names and sizes are checked now.

    A head that learns several labels of an image by the sigmoid loss has a probability for each.
    """
    prepared = preprocess(config)
    name, fields = architecture(config)
    if several_labels and config.loss.kind == "sigmoid":
        known = hasattr(models.spec(name, **fields), "probabilities")
        fields |= {"probabilities": "sigmoid"} if known else {}
    method = pretraining(config)
    if method is not None:
        method.check_name(name)  # before its fields, which may be those of another family
        sizes = Sizes(prepared.image_size, view_sizes(config.input))
        method.check(name, models.spec(name, **fields), sizes)
        num_classes = num_classes if method.uses_labels else 0
    if config.input.views and not (method and method.reads_views):
        raise errors.UserError(
            f"input.views has {len(config.input.views)} further views of an image, which "
            f"method.kind={config.method.kind} does not read: leave them out."
        )
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "image_size": prepared.image_size,
        **fields,
    }
    lora = adapters(config.lora)

    def make(rngs: nnx.Rngs, **changes: Any) -> nnx.Module:
        made = models.create(name, rngs=rngs, preprocess=prepared, **arguments | changes)
        made = made if lora is None else add(made, lora, rngs)
        extra = None if method is None else method.extend(made, rngs)
        if extra is not None:
            setattr(made, METHOD_PARAMS, extra)
        return made

    info = models.info(name, **arguments)
    wanted: dict[str, Any] = {"scan": True, "attention": XLA}
    changes = {k: v for k, v in wanted.items() if k in info.spec}
    make_counted = functools.partial(make, **changes)
    return Model(make, info, prepared, num_classes, lora, make_counted)


def pretraining(config: RunConfig) -> Method | None:
    """The method that the run learns by, unless it learns from labels."""
    return None if config.method.kind == SUPERVISED else config.method


def adapters(c: LoraConfig) -> Adapters | None:
    """The run's low-rank adapters, if any. Raises UserError for fields that would go unread."""
    if c.kernels:
        return Adapters(c.kernels, rank=c.rank, alpha=c.alpha, train=c.train)
    unread = [f.name for f in dataclasses.fields(c) if getattr(c, f.name) != f.default]
    if unread:
        raise errors.UserError(
            f"lora.{unread[0]}={getattr(c, unread[0])} is about adapters, but no kernel has one: "
            "set lora.kernels, such as --config.lora.kernels='blocks/.*/kernel'."
        )
    return None


def architecture(config: RunConfig) -> tuple[str, dict[str, Any]]:
    """The model's name, and the fields that differ from those that it implies. UserError."""
    fields = {k: v for k, v in dataclasses.asdict(config.model).items() if v is not None}
    if "name" in fields:
        return fields.pop("name"), fields
    if config.init.weights is None:
        raise errors.UserError(
            "model.name=None takes the architecture from init.weights, which is not set: give "
            "--config.init.weights=DIR, or a model by --config.model.name=ViT-B/16."
        )
    trained = trained_weights(config.init)
    of_weights = models.architecture(trained.spec)
    if config.init.head == "keep":
        of_head = ["pre_logits", *(["probabilities"] if config.loss.kind == "sigmoid" else [])]
        of_weights |= {f: getattr(trained.spec, f) for f in of_head if hasattr(trained.spec, f)}
    return trained.name, of_weights | fields


def check_init(c: InitConfig) -> None:
    """Raises UserError for fields about loading weights that would go unread."""
    if c.weights == "":
        raise errors.UserError(
            "init.weights is empty: give a work directory or checkpoint, or none for random ones."
        )
    unread = [f.name for f in dataclasses.fields(c) if getattr(c, f.name) != f.default]
    if c.weights is None and unread:
        raise errors.UserError(
            f"init.{unread[0]}={getattr(c, unread[0])} says how to take weights, but init.weights "
            "is not set: give --config.init.weights=DIR."
        )


def trained_weights(c: InitConfig) -> weights.CheckpointInfo:
    """The description of init.weights, which has to be set."""
    assert c.weights is not None
    try:
        return weights.checkpoint_info(c.weights)
    except errors.UserError as error:
        raise prefix_field("init.weights", c.weights, error) from error


def preprocess(config: RunConfig) -> models.Preprocess:
    """The preparation of images for prediction: that of the first evaluation.

    Without an evaluation, the whole image replaces the random crops of training.
    """
    size = image_size(config.input.preprocess, "input.preprocess")
    like = models.Preprocess(size, size)
    for name, c in list(config.evals.items())[:1]:
        of_eval = as_preprocess(c.preprocess, f"evals.{name}.preprocess")
        if of_eval.resize is not None or of_eval.crop is not None:
            like = of_eval
    return dataclasses.replace(like, image_size=size, mean=config.input.mean, std=config.input.std)


def description(config: RunConfig, model: Model, source: Source) -> dict[str, Any]:
    """The description in the run's checkpoints."""
    init = config.init
    return describe(
        model.info,
        num_classes=model.num_classes,
        class_names=source.class_names if model.num_classes else None,
        preprocess=model.preprocess,
        adapter_scale=None if model.adapters is None else model.adapters.scale,
        init_weights=init.weights if init.weights and weights.is_name(init.weights) else None,
    )
