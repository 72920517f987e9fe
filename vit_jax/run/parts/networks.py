"""The model of a run, and its description in checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flax import nnx

from vit_jax import models, weights
from vit_jax.config import InitConfig, InputConfig, LoraConfig, ModelConfig, RunConfig
from vit_jax.core import errors
from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.pytrees import METHOD_PARAMS
from vit_jax.data.source import Source
from vit_jax.evals.kind import EvalConfig
from vit_jax.learning.method import Method, Sizes
from vit_jax.models.layers.kernels.choice import XLA
from vit_jax.run.parts.preprocessing import as_preprocess, image_size, view_sizes
from vit_jax.weights.description import describe

if TYPE_CHECKING:
    from vit_jax.models.adapters import Adapters


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


def model(
    config: RunConfig, *, num_classes: int, several_labels: bool = False, pixels: Pixels = RGB
) -> Model:
    """The model of the run for data of so many classes; names and sizes are checked now.

    A head that learns several labels of an image by the sigmoid loss has a probability for each.
    """
    prepared = preprocess(config.input, config.evals)
    prepared = dataclasses.replace(prepared, channels=pixels.channels, dtype=pixels.dtype)
    name, fields = architecture(config.model, config.init, config.loss.exclusive)
    if several_labels and not config.loss.exclusive:
        known = hasattr(models.spec(name, **fields), "probabilities")
        fields |= {"probabilities": "sigmoid"} if known else {}
    fields |= _channels(config, pixels) if pixels.channels != fields.get("channels", 3) else {}
    method: Method = config.method
    method.check_name(name)  # before its fields, which may be those of another family
    for constraint in method.constraints:
        constraint.check(config)
    spec = models.spec(name, **fields)
    sizes = Sizes(prepared.image_size, view_sizes(config.input), pixels.channels)
    method.check(name, spec, sizes)
    check_dense(method, spec)
    num_classes = (method.num_outputs or num_classes) if method.uses_labels else 0
    teacher = functools.partial(teacher_spec, method)
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "image_size": prepared.image_size,
        **fields,
    }
    lora = adapters(config.lora)

    def make(rngs: nnx.Rngs, **changes: Any) -> nnx.Module:
        made = models.create(name, rngs=rngs, preprocess=prepared, **arguments | changes)
        if lora is not None:
            from vit_jax.models.adapters import add

            made = add(made, lora, rngs)
        extra = method.extend_for(teacher, made, rngs)
        if extra is not None:
            setattr(made, METHOD_PARAMS, extra)
        return made

    info = models.info(name, **arguments)
    wanted: dict[str, Any] = {"scan": True, "attention": XLA}
    changes = {k: v for k, v in wanted.items() if k in info.spec}
    make_counted = functools.partial(make, **changes)
    return Model(make, info, prepared, num_classes, lora, make_counted)


def _channels(config: RunConfig, pixels: Pixels) -> dict[str, int]:
    """The field `channels` of a model of these images; UserError where the config has another."""
    wanted = config.model.channels
    if wanted is not None:
        rule = f"but images are {pixels}: leave it out."
        raise errors.UserError(rule, field="model.channels", value=wanted)
    return {"channels": pixels.channels}


def check_dense(method: Method, spec: Any) -> None:
    """UserError unless the head gives what the method learns: for each place, or for the image."""
    head = getattr(spec, "dense", None)
    if bool(head) == bool(method.reads_maps):
        return
    rule = f"is no head for method.kind={method.kind}: leave it out."
    if not head:
        rule = f"gives method.kind={method.kind} nothing for each place: set model.dense=linear."
    raise errors.UserError(rule, field="model.dense", value=head)


def teacher_spec(method: Method) -> Any:
    """The fields of a method's teacher."""
    assert method.teacher is not None
    with errors.naming("method.teacher", method.teacher):
        return weights.checkpoint_info(method.teacher).spec


def adapters(c: LoraConfig) -> Adapters | None:
    """The run's low-rank adapters, if any."""
    if not c.kernels:
        return None
    from vit_jax.models.adapters import Adapters

    return Adapters(c.kernels, rank=c.rank, alpha=c.alpha, train=c.train)


def architecture(c: ModelConfig, init: InitConfig, exclusive: bool) -> tuple[str, dict[str, Any]]:
    """The model's name, and the fields that differ from those that it implies. UserError.

    exclusive: whether the loss is of one label for an image, as a softmax is.
    """
    fields = {k: v for k, v in dataclasses.asdict(c).items() if v is not None}
    if "name" in fields:
        return fields.pop("name"), fields
    if not init.weights:
        raise errors.UserError(
            "model.name=None: give --config.init.weights=DIR, whose model is taken."
        )
    trained = trained_weights(init)
    of_weights = models.architecture(trained.spec)
    if init.head == "keep":
        of_head = ["dense", "pre_logits", "projection", "unit_features"]
        of_head += [] if exclusive else ["probabilities"]
        of_weights |= {f: getattr(trained.spec, f) for f in of_head if hasattr(trained.spec, f)}
    return trained.name, of_weights | fields


def trained_weights(c: InitConfig) -> weights.CheckpointInfo:
    """The description of init.weights, which has to be set."""
    assert c.weights is not None
    with errors.naming("init.weights", c.weights):
        return weights.checkpoint_info(c.weights)


def preprocess(c: InputConfig, evals: Mapping[str, EvalConfig]) -> models.Preprocess:
    """The preparation of images for prediction: that of the first evaluation.

    Without an evaluation, the whole image replaces the random crops of training.
    """
    size = image_size(c.preprocess, "input.preprocess")
    like = models.Preprocess(size, size)
    for name, first in list(evals.items())[:1]:
        of_eval = as_preprocess(first.preprocess, f"evals.{name}.preprocess")
        if of_eval.resize is not None or of_eval.crop is not None:
            like = of_eval
    return dataclasses.replace(like, image_size=size, mean=c.mean, std=c.std)


def description(init: InitConfig, model: Model, source: Source) -> dict[str, Any]:
    """The description in the run's checkpoints."""
    has_classes = model.num_classes and model.num_classes == source.num_classes
    return describe(
        model.info,
        num_classes=model.num_classes,
        class_names=source.class_names if has_classes else None,
        preprocess=model.preprocess,
        adapter_scale=None if model.adapters is None else model.adapters.scale,
        init_weights=init.weights if init.weights and weights.is_name(init.weights) else None,
    )
