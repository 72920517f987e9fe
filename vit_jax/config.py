"""The config of a run: a dataclass for each section, and strict parsing of config files.

Values of a config file override the defaults below; flags override the file's. Every name
and every type is checked, so a field that does not exist, or that nothing could read, cannot hide.
Each default lives once: here, or for models, losses, methods and evaluations in the part's
dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import optax

from vit_jax import evals, models
from vit_jax.core import errors
from vit_jax.core.schema import config_file, constraints, entry_points, strict
from vit_jax.core.schema import fields as schema
from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.fields import ABOVE_0, MOST_CLASSES, UP_TO_1, field, words
from vit_jax.evals.kind import EvalConfig
from vit_jax.evals.metrics import METRICS
from vit_jax.learning import methods
from vit_jax.learning.losses import LOSSES, SOFTMAX, LossConfig, Softmax, Supervised
from vit_jax.learning.optim.optimizers import (
    DECAYED,
    MU_DTYPES,
    OPTIMIZERS,
    WEIGHT_DECAY_MEANINGS,
    decay_per_lr,
)
from vit_jax.learning.optim.schedules import DECAYS, WARMUPS, Decay, Schedule
from vit_jax.store.metrics import RESERVED

_MODEL_NAME = (
    "`ViT-<Ti, S, B, L, So400m, H, g, G or 22B>/<patch size in pixels>`, a backbone such "
    "as `ViT-B/14-dinov2`, `ViT-12x512/16` by depth and width, a hybrid such as "
    "`R50+ViT-B/16`, a ResNet such as `R50x1`, one with axial attention such as "
    "`Axial-ViT-B/16`, or `EfficientNet-B0`: see [models](models.md), which refuse fields"
    " that they do not have; `None`: name and architecture of `init.weights`"
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The model: its name, and the fields that its family declares. None: as `name` implies.

    models.info shows them. The image size is what `input.preprocess` gives, the number of
    classes what the data has.
    """

    name: str | None = field("ViT-B/16", _MODEL_NAME)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@functools.cache
def _model_section(family: models.Family | None) -> type[ModelConfig]:
    """The section with the fields of a family, or of all."""
    declared = models.config_fields(family).items()
    fields = [(name, about.hint | None, about.optional()) for name, about in declared]
    return dataclasses.make_dataclass("ModelConfig", fields, bases=(ModelConfig,), frozen=True)


def _find_model_section(values: Mapping[str, Any]) -> type[ModelConfig]:
    """The fields of the family that `values` name; of all where it lacks one, or is not known.

    What a model does not have, models.spec refuses.
    """
    name = values.get("name", ModelConfig.name)
    family = models.find_family(name) if isinstance(name, str) else None
    section = _model_section(family)
    has_all = values.keys() <= {f.name for f in dataclasses.fields(section)}
    return section if has_all else _model_section(None)


def _default_model() -> ModelConfig:
    return _find_model_section({})()


@dataclasses.dataclass(frozen=True)
class ComponentConfig:
    """A data set of several to train on. None: the same as in `input`."""

    weight: float = field(
        1.0, "its share of the examples, relative to the other components' weights", bounds=(0, 1e9)
    )
    source: str | None = field(None)
    data_dir: str | None = field(None)
    split: str | None = field(None)
    num_examples: int | None = field(None, "declared, as in `input`", bounds=(1, 2**53))
    pseudo_labels: str | None = field(
        None, "a file, as in `input`; `None`: this component has labels"
    )


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """The training data and how an example becomes an array."""

    source: str = field(
        "digits",
        "`digits`, `tfds`, `image_folder`, `image_table`, `mask_folder` or `synthetic`; see [own "
        "images](own_images.md)",
    )
    data_dir: str | None = field(None, "where the data lies")
    split: str = field(
        "train",
        "a split or a slice of one: `train[:98%]`, `train[51200:]`; several, one behind the "
        "other: `train[:800]+validation[:200]`",
    )
    preprocess: str = field("decode|inception_crop(224)|flip_lr", "see above")
    views: tuple[str, ...] = field(
        (),
        "ops of further views of each image, for a [method](methods.md#dino) that compares several",
    )
    batch_size: int = field(4096, "over all devices together", bounds=(1, 2**31))
    num_examples: int | None = field(
        None,
        "of the split, before any subset, or of a mixture. Declared: checked against the "
        "data; needed by `synthetic`",
        bounds=(1, 2**53),
    )
    num_classes: int | None = field(None, "likewise", bounds=(1, MOST_CLASSES + 1))
    subset_fraction: float | None = field(
        None,
        "train on this part of the split, in (0, 1]; see [subsets](data.md#subsets); of the "
        "three at most one",
        bounds=(0, UP_TO_1),
    )
    subset_examples: int | None = field(None, "or on this many of its examples", bounds=(1, 2**53))
    subset_per_class: int | None = field(None, "or on this many of each class", bounds=(1, 2**53))
    balance: Literal["class"] | None = field(
        None,
        "`class`: all classes [equally often](data.md#classes-of-equal-weight), whatever "
        "their sizes",
    )
    repeats: int = field(
        1,
        "[repeated augmentation](data.md#repeated-augmentation): this many copies of an image"
        " in a batch, each augmented anew",
        bounds=(1, 2**10),
    )
    mixture: dict[str, ComponentConfig] = field(
        {}, "several data sets, by names of your choice; see [mixtures](data.md#mixtures)"
    )
    mean: tuple[float, ...] = field(
        (0.5, 0.5, 0.5),
        "of RGB in [0, 1], not [0, 255]; of each channel of [arrays](data_formats.md#arrays), or "
        "one for all; subtracted",
        bounds=(-1e9, 1e9),
    )
    std: tuple[float, ...] = field((0.5, 0.5, 0.5), "divided by afterwards", bounds=(1e-6, 1e9))
    on_bad_image: Literal["fail", "skip"] = field(
        "fail", "`fail` names it and stops, `skip` gives it weight 0"
    )
    max_bad_fraction: float = field(
        0.1,
        "of the examples of an epoch: when more of them were skipped, the run ends and says "
        "so. At 1 only a batch without a good image ends it",
        bounds=(0, 2),
    )
    max_image_pixels: int = field(
        100_000_000, "checked before an image is decoded", bounds=(1, 2**53)
    )
    label: str | None = field(
        None,
        "of `tfds`: the feature that is the label, such as `coarse_label`, or `segmentation_mask` "
        "for [masks](dense.md#data), or [how it is derived](data_formats.md#other-labels); `None`: "
        "`label` or `labels`. Of `image_table`: "
        "the column of labels, or those of 0 and 1, one for each class: `cat,dog` or `is_*`; "
        "`None`: that with a [usual name](own_images.md#a-table-of-labels)",
    )
    image_column: str | None = field(
        None, "of `image_table`: the column of files; `None`: that with a usual name"
    )
    split_column: str | None = field(
        None,
        "of `image_table`: the column of splits; `None`: that with a usual name, else splits that "
        "paths of files say, else one in ten images is `val`",
    )
    label_separator: str | None = field(
        None,
        "of `image_table`: what stands between several labels in a cell, such as `|` or a space; "
        "`None`: a cell is one label",
    )
    void: int | None = field(
        None,
        "of masks: the value of pixels of no class, which are neither learnt nor scored; those "
        "above it count one less; `None`: 255",
        bounds=(0, 2**16),
    )
    label_weights: bool = field(
        True,
        "whether [weights of labels](data.md#weights-of-labels) are used where the data have "
        "them, in evaluations too; else every label weighs 1",
    )
    pseudo_labels: str | None = field(
        None,
        "a file of [pseudo-labels](noisy_student.md): the images that it chooses are trained "
        "on with what a model said of them; labels of the data are not read",
    )
    cache: str | None = field(
        None, "`ram`, `device`, or a folder on a local disk: see [caches](data.md#caches)"
    )
    cache_bytes: int | None = field(
        None,
        "its limit; `None`: 8 GiB of memory, or what the disk or each device has",
        bounds=(1, 2**63),
    )
    threads: int = field(0, "of the input pipeline; 0: one a core", bounds=(0, 1024))
    timeout_secs: int = field(
        600,
        "how long to wait for a batch; then the run ends, and the message names the files and"
        " the host",
        bounds=(1, 2**31),
    )
    skip_steps: tuple[int, ...] = field(
        (),
        "steps whose batches are left out, such as `1234,1235`: nothing is learnt from them, "
        "and all else goes on as if; a run may be resumed with others that are [still to "
        "come](resuming.md)",
        bounds=(1, 2**31),
    )


@dataclasses.dataclass(frozen=True)
class OptimConfig(Decay):
    """The optimizer; with the fields of its schedule, whose class is that of `schedule`."""

    name: str = field(
        "adam",
        f"{words(OPTIMIZERS)}: see [optimizers](optimizers.md), also for which of them read `b1` "
        "to `mu_dtype`; `optax:NAME`, or that of a [plug-in](plugins.md#an-optimizer)",
    )
    lr: float = field(1e-3, "at the peak", bounds=(0, 1e6))
    schedule: str = field(
        "linear",
        f"after the warmup: {words(DECAYS)}, see [schedules](optimizers.md#schedules); or that of "
        "a [plug-in](plugins.md#a-schedule)",
    )
    lr_min: float = field(0.0, "where `linear` and `cosine` end", bounds=(0, 1e6))
    decay_from_start: bool = field(
        False,
        "`linear` and `cosine` count from the first step, as timm's do, not from the warmup's end",
    )
    cycles: int = field(
        1,
        "`linear` and `cosine`: how many, one behind the other, each from its own peak",
        bounds=(1, 2**20),
    )
    cycle_decay: float = field(1.0, "from peak to peak: a factor", bounds=(1e-6, UP_TO_1))
    lr_by_epoch: bool = field(
        False, "the rate of an epoch's first step is that of the whole epoch, as timm's"
    )
    warmup: str = field(
        "linear",
        "or `reciprocal`: 1/5, 1/4, 1/3, 1/2, 1 of the peak in five epochs",
        choices=WARMUPS,
    )
    warmup_lr: float = field(0.0, "where the warmup begins", bounds=(0, 1e6))
    warmup_steps: int | None = field(
        None, "its length; of these three at most one", bounds=(0, 2**31)
    )
    warmup_epochs: float | None = field(None, bounds=(0, 1e6))
    warmup_examples: int | None = field(None, bounds=(0, 2**53))
    cooldown_steps: int | None = field(
        None,
        "linear to 0, at the end of `constant`, `rsqrt` or `exponential`; `linear` and `cosine` "
        "stay at `lr_min`; of these three at most one",
        bounds=(0, 2**31),
    )
    cooldown_epochs: float | None = field(None, bounds=(0, 1e6))
    cooldown_examples: int | None = field(None, bounds=(0, 2**53))
    weight_decay: float = field(0.0, "its coefficient", bounds=(0, 1e6))
    weight_decay_on: str = field(
        "kernels",
        "`kernels` only, as the paper's; or `all` parameters, norms, biases and positions too",
        choices=DECAYED,
    )
    weight_decay_meaning: str = field("lr_scaled", "see above", choices=WEIGHT_DECAY_MEANINGS)
    grad_clip_norm: float | None = field(
        1.0, "largest norm over all gradients together; `None`: no clipping", bounds=(1e-30, 1e9)
    )
    freeze: tuple[str, ...] = field(
        (),
        "patterns of parameters that stay as they are; see "
        "[patterns](optimizers.md#parameters-by-pattern)",
    )
    lr_multipliers: tuple[str, ...] = field((), "`PATTERN=FACTOR`, of the learning rate")
    layer_decay: float | None = field(
        None,
        "learning rate of a layer, as a share of that of the layer above it; in (0, 1]",
        bounds=(ABOVE_0, UP_TO_1),
    )
    ema_decay: float | None = field(
        None,
        "what the exponential moving average (EMA) of the weights keeps of itself in a step, "
        "such as 0.9999; in step s, from 1, at most s / (9 + s). It is evaluated beside the "
        "raw weights, as `<name>_ema/...`, and saved",
        bounds=(0, 1),
    )
    grad_accum_steps: int = field(
        1,
        "microbatches that a batch is computed in: less memory, the same update",
        bounds=(1, 2**31),
    )
    b1: float = field(0.9, "memory of the first moment", bounds=(0, 1))
    b2: float = field(0.999, "memory of the second moment; `lion`: of the momentum", bounds=(0, 1))
    eps: float = field(
        1e-8, "added to the second moment's root; `rmsprop`: under it", bounds=(0, 1e3)
    )
    momentum: float = field(0.9, "memory of the velocity", bounds=(0, 1))
    nesterov: bool = field(False, "a step ahead along the momentum")
    joint_qkv: bool = field(
        False, "LAMB: query, key and value are one matrix, with one trust ratio, as in DeiT"
    )
    mu_dtype: str = field(
        "float32", "of the first moment or momentum; or `bfloat16`", choices=MU_DTYPES
    )

    @property
    def decays(self) -> bool:
        """Whether `rule` applies weight_decay itself."""
        return False

    @property
    def average(self) -> Callable[[Any, Any], Any] | None:
        """(its state, the parameters after an update) -> those to evaluate; None: these are.

        They are the run's EMA then.
        """
        return None

    @entry_points.left_open
    def rule(self, schedule: Schedule) -> optax.GradientTransformation:
        """The rule of an optimizer that is not in OPTIMIZERS; updates are multiplied by -lr(t).

        schedule: lr(t) by the number of updates before.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class OptaxConfig(OptimConfig):
    """An optimizer of optax (learning/optim/from_optax.py)."""

    arguments: tuple[str, ...] = field(
        (), "of `optax:NAME`: `NAME=VALUE` for its function, such as `alpha=8,b3=0.999`"
    )

    @property
    def decays(self) -> bool:
        """Whether the function takes a weight decay."""
        from vit_jax.learning.optim import from_optax

        return from_optax.decays(self.name)

    @property
    def average(self) -> Callable[[Any, Any], Any] | None:
        """That of a schedule-free optimizer."""
        from vit_jax.learning.optim import from_optax

        return from_optax.average if from_optax.averages(self.name) else None

    def rule(self, schedule: Schedule) -> optax.GradientTransformation:
        """The function's, without gradient clipping."""
        from vit_jax.learning.optim import from_optax

        return from_optax.rule(
            self.name,
            self.arguments,
            schedule=schedule,
            weight_decay=decay_per_lr(self.weight_decay, self.weight_decay_meaning, self.lr),
            mask=DECAYED[self.weight_decay_on],
        )


_OPTAX = "optax:NAME"
# Optimizers that are not in OPTIMIZERS.
_OTHERS = entry_points.Parts[type[OptimConfig]](
    "optimizers", {_OPTAX: "vit_jax.config:OptaxConfig"}
)


def _find_optimizer(name: str) -> type[OptimConfig]:
    """The dataclass of an optimizer's fields. UserError for one that is not there."""
    if name in OPTIMIZERS:
        return OptimConfig
    if name.startswith("optax:"):
        return _OTHERS[_OPTAX]
    return _OTHERS.get_named("optim.name", name, OPTIMIZERS)


@dataclasses.dataclass(frozen=True)
class TotalConfig:
    """The length of the run: exactly one of the three."""

    steps: int | None = field(None, bounds=(1, 2**31))
    epochs: float | None = field(None, "need not be whole", bounds=(0, 1e6))
    examples: int | None = field(None, bounds=(1, 2**53))


@dataclasses.dataclass(frozen=True)
class EarlyStoppingConfig:
    """The end of a run whose metric gets no better; the learning rate's schedule stays as it is."""

    metric: str | None = field(None, "such as `held_out/accuracy`; `None`: the run goes to its end")
    mode: Literal["max", "min"] | None = field(None, "as `checkpoint.best_mode`")
    patience: int = field(
        5,
        "so many evaluations in a row that are no better than the best before them end the run",
        bounds=(1, 2**31),
    )
    min_delta: float = field(
        0.0, "what is better by no more than this is no better", bounds=(0, 1e9)
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each mesh axis; -1 on one axis: all the rest."""

    replica: int = field(
        1,
        "slices of a pod, joined by the data-centre network: whole copies of the three below",
        bounds=(-1, 2**31),
    )
    data: int = field(
        -1,
        "copies of the parameters, on different examples; -1, here as for the others: what "
        "the other axes leave",
        bounds=(-1, 2**31),
    )
    fsdp: int = field(
        1, "parameters and optimizer are divided by width, and examples as well", bounds=(-1, 2**31)
    )
    tensor: int = field(
        1,
        "heads, the MLP and the channels inside a ResNet's units are divided, examples are not",
        bounds=(-1, 2**31),
    )
    shard_optimizer: bool = field(
        False,
        "between steps, parameters, their average and the optimizer's state are divided over "
        "`data` as well (ZeRO-1)",
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Saving of checkpoints; the newest is always kept, and the last step always saved."""

    every_steps: int = field(1000, "and after the last step", bounds=(1, 2**31))
    keep_last: int = field(2, "how many of the newest stay", bounds=(1, 2**31))
    keep_every_steps: int | None = field(None, "multiples of this stay for good", bounds=(1, 2**31))
    best_metric: str | None = field(
        None,
        "such as `held_out/accuracy`: the best one stays as well; [not the split that is "
        "reported](own_images.md#choosing)",
    )
    best_mode: Literal["max", "min"] | None = field(
        None, "`max` or `min`; `None`: `min` of a loss or an error, else `max`"
    )


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """The logging of a run, and its intervals."""

    every_steps: int = field(
        50, "a row of `metrics.jsonl`, a line on the screen", bounds=(1, 2**31)
    )
    tensorboard: bool = field(True, "its files, in the work directory")
    loggers: tuple[str, ...] = field(
        (), "names of [plug-ins](plugins.md) that get the numbers as well"
    )
    wandb_project: str | None = field(
        None, "shows the run in this project of Weights & Biases (`pip install wandb`)"
    )
    mlflow_experiment: str | None = field(
        None, "and in this experiment of [MLflow](reading_logs.md#mlflow) (`pip install mlflow`)"
    )
    first_batch: int = field(
        24,
        "so many images of step 1 in [a picture](reading_logs.md#pictures); 0: none",
        bounds=(0, 1024),
    )
    histograms_every_steps: int | None = field(
        None,
        "gradients and activations of these steps, and of the last; see [reading the "
        "logs](reading_logs.md)",
        bounds=(1, 2**31),
    )
    profile_at_step: int | None = field(
        None,
        "the step after which a trace for TensorBoard's profiler begins; not the last",
        bounds=(1, 2**31),
    )
    profile_steps: int = field(5, "how many steps of it", bounds=(1, 2**31))
    peak_tflops: float | None = field(
        None,
        "of one device, for the MFU; `None`: its data sheet's, where known",
        bounds=(1e-6, 1e6),
    )


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Start from these parameters instead of random ones."""

    weights: str | None = field(
        None,
        "a work directory or checkpoint of this project, or [other weights](weights.md), to "
        "start from",
    )
    ema: bool = field(
        False, "the EMA of these weights, where their run kept one (`optim.ema_decay`)"
    )
    head: Literal["keep", "reset"] = field(
        "keep", "the same model, or `reset`: a fresh head, for other classes"
    )
    channels: Literal["repeat"] | None = field(
        None,
        "`repeat`: weights of 3 channels see as many as the data have, by kernels that are "
        "repeated and scaled, or for one channel summed, as timm does; `None`: both have as many",
    )
    position_resize: Literal["bilinear", "bicubic"] = field(
        "bilinear",
        "or `bicubic`: how learned positions are interpolated for images of another size",
    )


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters of kernels, which are trained in their place."""

    kernels: tuple[str, ...] = field((), "patterns of the kernels that have one; `()`: no adapters")
    rank: int = field(8, "of every adapter", bounds=(1, 2**20))
    alpha: float = field(
        8.0, "an adapter's product is multiplied by `alpha / rank`", bounds=(1e-6, 1e6)
    )
    train: tuple[str, ...] = field(("head/.*",), "patterns of what else is trained")


# Each kind of evaluation has fields of its own (vit_jax/evals).
_BY_KIND = strict.ByKind(evals.find, evals.CLASSIFICATION, evals.KINDS)
_BY_METRICS = strict.ByKind(
    functools.partial(METRICS.get_named, "evals.NAME.metrics"), (), METRICS, by="metrics"
)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    # Its fields are those of the family of its `name` (vit_jax/models).
    model: Annotated[
        ModelConfig, strict.ByValues(_find_model_section, functools.partial(_model_section, None))
    ] = dataclasses.field(default_factory=_default_model)
    input: InputConfig = dataclasses.field(default_factory=InputConfig)
    # How it learns; its fields are those of the dataclass of its `kind` (vit_jax/learning/methods).
    method: Annotated[Any, strict.ByKind(methods.find, methods.SUPERVISED)] = dataclasses.field(
        default_factory=Supervised
    )
    # Its fields are those of the dataclass of its `kind` (vit_jax/learning/losses.py).
    loss: Annotated[
        LossConfig, strict.ByKind(functools.partial(LOSSES.get_named, "loss.kind"), SOFTMAX, LOSSES)
    ] = dataclasses.field(default_factory=Softmax)
    # Further fields are those of an optimizer of others, and of the schedule.
    optim: Annotated[
        OptimConfig,
        strict.ByKind(
            functools.partial(DECAYS.get_named, "optim.schedule"), "linear", DECAYS, by="schedule"
        ),
        strict.ByKind(_find_optimizer, "adam", _OTHERS, by="name"),
    ] = dataclasses.field(default_factory=strict.mixed(DECAYS["linear"], OptimConfig))
    total: TotalConfig = dataclasses.field(default_factory=TotalConfig)
    early_stopping: EarlyStoppingConfig = dataclasses.field(default_factory=EarlyStoppingConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evals: dict[str, Annotated[EvalConfig, _BY_METRICS, _BY_KIND]] = field({})
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    seed: int = field(0, "of everything random", bounds=(0, 2**31))
    deterministic: bool = field(False, "on GPUs: only kernels whose results repeat bit by bit")

    def __repr__(self) -> str:
        """The program that makes it again: the fields that differ from the defaults."""
        return f"vit_jax.load_config({_lines(strict.differing(self))})"


def _lines(values: Any, indent: str = "") -> str:
    """Nested dictionaries as Python, a field a line."""
    if not isinstance(values, dict) or not values:
        return repr(values)
    inner = indent + "    "
    items = [f"{inner}{name!r}: {_lines(value, inner)},\n" for name, value in values.items()]
    return f"{{\n{''.join(items)}{indent}}}"


# Of each group at most one may be set; an override of one takes the others back.
EXCLUSIVE = (
    ("total.steps", "total.epochs", "total.examples"),
    ("optim.warmup_steps", "optim.warmup_epochs", "optim.warmup_examples"),
    ("optim.cooldown_steps", "optim.cooldown_epochs", "optim.cooldown_examples"),
    ("input.subset_fraction", "input.subset_examples", "input.subset_per_class"),
)

LEAST_ALPHA = 1e-6  # of mixup and CutMix: below, draws from a Beta distribution are not finite

# Rules for fields together, which `check_constraints` checks when a run is made of them.
CONSTRAINTS = (
    *constraints.choice_rules("optim.name", {name: o.reads for name, o in OPTIMIZERS.items()}),
    *constraints.unread_rules(
        "optim",
        ("lr_min", "decay_from_start", "cycles", "cycle_decay"),
        lambda c: c.optim.to_zero,
        "is not read by optim.schedule={optim.schedule}, which has no lowest rate: leave it out.",
    ),
    *constraints.unread_rules(
        "lora",
        [f.name for f in dataclasses.fields(LoraConfig) if f.name != "kernels"],
        lambda c: c.lora.kernels,
        "is not read without lora.kernels: set that, or leave this out.",
    ),
    Constraint(
        "optim.cycle_decay",
        lambda c: c.optim.cycles == 1 and c.optim.cycle_decay != 1,
        "is not read with optim.cycles=1: set more cycles, or leave it out.",
    ),
    Constraint("init.weights", lambda c: c.init.weights == "", "is empty: give a path, or none."),
    *constraints.unread_rules(
        "init",
        [f.name for f in dataclasses.fields(InitConfig) if f.name != "weights"],
        lambda c: c.init.weights is not None,
        "is not read without init.weights: set that, or leave this out.",
    ),
    Constraint(
        "input.repeats",
        lambda c: c.input.repeats > c.input.batch_size,
        "copies of an image do not fit into input.batch_size={input.batch_size}.",
    ),
    Constraint(
        "input.repeats",
        lambda c: c.input.repeats > 1 and (c.input.mixture or c.input.balance),
        "does not go with input.mixture or input.balance, which say themselves how often an image "
        "is seen. Set input.repeats=1.",
    ),
    *constraints.unread_rules(
        "input",
        ("subset_fraction", "subset_examples", "subset_per_class", "balance"),
        lambda c: not c.input.mixture,
        "does not go with input.mixture. Take parts of components by their splits, such as "
        "train[:10%].",
    ),
    Constraint(
        "input.pseudo_labels",
        lambda c: c.input.mixture and c.input.pseudo_labels,
        "does not go with input.mixture: which of its components have pseudo-labels is said by "
        "input.mixture.NAME.pseudo_labels.",
    ),
    Constraint(
        "input.views",
        lambda c: c.input.cache == "device" and c.input.views,
        "does not go with input.cache=device, which keeps one view of an image: set "
        "input.cache=ram, which keeps images as they are stored.",
    ),
    Constraint(
        "input.views",
        lambda c: c.input.views and not c.method.reads_views,
        "is not read by method.kind={method.kind}: leave it out.",
    ),
    *constraints.value_rules(
        "loss",
        ("mixup", "cutmix"),
        lambda alpha, c: 0 < alpha < LEAST_ALPHA,
        f"is neither 0, for none, nor at least {LEAST_ALPHA:g}.",
    ),
    *constraints.unread_rules(
        "optim",
        ("ema_decay", "freeze", "lr_multipliers", "layer_decay"),
        lambda c: c.optim.average is None,
        "does not go with an optimizer that keeps the weights to evaluate itself: leave it out.",
    ),
    Constraint(
        "optim.name",
        lambda c: c.optim.average is not None and c.method.averaging(0.0) is not None,
        "does not go with method.kind={method.kind}: both keep weights beside those that are "
        "trained.",
    ),
    Constraint(
        "lora.kernels",
        lambda c: c.optim.average is not None and c.lora.kernels,
        "does not go with optim.name={optim.name}, which keeps the weights to evaluate itself.",
    ),
    Constraint(
        "optim.weight_decay_meaning",
        lambda c: c.optim.decays and c.optim.weight_decay_meaning == "coupled",
        "does not go with optim.name={optim.name}, which decays by itself: leave it out.",
    ),
    Constraint(
        "optim.joint_qkv",
        lambda c: c.optim.name == "lamb" and c.optim.joint_qkv and not c.optim.weight_decay,
        "is not read by lamb with optim.weight_decay=0.",
    ),
    Constraint(
        "optim.weight_decay_on",
        lambda c: c.optim.name == "lamb" and c.optim.weight_decay_on != "kernels",
        "does not go with optim.name=lamb, whose trust ratios are of kernels: leave it out.",
    ),
    *constraints.unread_rules(
        "loss",
        ("cutmix_share", "mix_probability", "mix_mode", "mix_until"),
        lambda c: c.loss.mixup or c.loss.cutmix,
        "is not read without loss.mixup or loss.cutmix: set one of them, or leave this out.",
    ),
    Constraint(
        "loss.mix_mode",
        lambda c: c.loss.mix_mode == "pair" and c.input.batch_size % 2,
        "needs an even input.batch_size; it is {input.batch_size}.",
    ),
    Constraint(
        "loss.class_weights",
        lambda c: c.loss.class_weights is not None and not any(c.loss.class_weights),
        "are all 0, so that nothing would be learnt.",
    ),
    Constraint(
        "loss.class_weights",
        lambda c: c.loss.class_weights == "balanced" and c.input.balance,
        "and input.balance={input.balance} both make all classes count alike: set one to none.",
    ),
    *constraints.value_rules(
        "optim",
        ("lr_min", "warmup_lr"),
        lambda lr, c: lr > c.optim.lr,
        "is above optim.lr={optim.lr}, the peak.",
    ),
    Constraint(
        "optim.ema_decay",
        lambda c: c.optim.ema_decay is not None and c.method.averaging(0.0) is not None,
        "is not read by method.kind={method.kind}, which averages the weights by the fields of "
        "method: leave it out.",
    ),
    Constraint(
        "optim.grad_accum_steps",
        lambda c: c.optim.grad_accum_steps > 1 and c.method.whole_batch,
        "does not go with method.kind={method.kind}, which compares the images of the whole batch "
        "(method.{method.whole_batch}). Set optim.grad_accum_steps=1.",
    ),
    Constraint(
        "checkpoint.keep_every_steps",
        lambda c: not meets_saves(c.checkpoint.keep_every_steps, c.checkpoint),
        "does not meet checkpoints: give a multiple of checkpoint.every_steps="
        "{checkpoint.every_steps}, or a divisor.",
    ),
)

# A run may be resumed although these differ: data and update rule stay the same (a mesh changes
# rounding, early stopping the end). "*" is any name.
FREE_FIELDS = (
    "log", "evals", "checkpoint", "mesh", "early_stopping", "input.threads", "input.timeout_secs",
    "input.data_dir", "input.mixture.*.data_dir", "input.cache", "input.cache_bytes",
    "input.max_bad_fraction", "input.pseudo_labels", "input.mixture.*.pseudo_labels",
    "method.teacher",
)  # fmt: skip

# Numbers of steps: a run may be resumed with others, as long as they differ in steps to come alone.
STEP_FIELDS = ("input.skip_steps",)


def meets_saves(steps: int | None, c: CheckpointConfig) -> bool:
    """Returns whether every so many steps there is a checkpoint, or one every save's multiple."""
    return steps is None or not steps % c.every_steps or not c.every_steps % steps


def check_constraints(config: RunConfig, attempt: errors.Attempt = errors.make_or_raise) -> None:
    """Raises UserError if the config breaks one of CONSTRAINTS.

    attempt: ErrorCollector.attempt, for those of all that it breaks.
    """
    for constraint in CONSTRAINTS:
        attempt(constraint.field, constraint.check, config)


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file, "configs/x.py", "x" or "x:arg", and overrides describe."""
    return resolve(config_file.read(path), overrides)


def resolve(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Lays `values` (nested), then `overrides` ("optim.lr=3e-4"), in order, over the defaults."""
    tree = strict.plain(values)
    for override in overrides:
        name, eq, text = override.partition("=")
        if not eq:
            raise errors.UserError(f"Override {override!r} has no value: write name=value.")
        strict.override(tree, name, text)
        if not strict.says_none(text):
            for rival in rivals(name):
                strict.override(tree, rival, "none")
    config = strict.build(RunConfig, tree)
    _check(config)
    return config


def overlaid(values: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those of `sections`, both nested, over them; these take rivals back."""
    sections = strict.plain(sections)
    done = strict.overlaid(strict.plain(values), sections)
    for group in EXCLUSIVE:
        section = group[0].partition(".")[0]
        given = sections.get(section)
        names = [full.partition(".")[2] for full in group]
        if isinstance(given, dict) and any(given.get(name) is not None for name in names):
            done[section] |= {name: given.get(name) for name in names}
    return done


def rivals(field: str) -> list[str]:
    """The fields that an override of this one takes back: the others of its group in EXCLUSIVE."""
    return [other for group in EXCLUSIVE if field in group for other in group if other != field]


def fields() -> list[str]:
    """All fields, with dots: "optim.lr", "evals.<name>.split"."""
    return strict.leaves(RunConfig)


def with_new_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Adds fields that are newer than a result of `to_dict`, with their defaults.

    A default is what runs did before the field existed. Unchanged if it is not a valid run today.
    """
    try:
        return to_dict(resolve(values))
    except errors.UserError:
        return values


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries with JSON's types, every field present but `model`'s that are None.

    These are those that the model's name implies, or that its family does not have.
    """
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    model = {k: x for k, x in values["model"].items() if x is not None or k == "name"}
    return values | {"model": model}


def _check(config: RunConfig) -> None:
    schema.check_all_bounds(config, "config")
    for name in config.evals:
        if name in RESERVED or name.endswith("_ema") or not name.isidentifier():
            raise errors.UserError(
                f"config.evals.{name} is no name for an evaluation: give letters, digits and _, no "
                f"digit first and no _ema last, and none of {', '.join(RESERVED)}."
            )
    for group in EXCLUSIVE:
        given = [name for name in group if strict.values_at(config, name)[0][1] is not None]
        if len(given) > 1:
            raise errors.UserError(
                f"Give one of {', '.join(given)}; --config.{given[0]}=VALUE is enough."
            )
