"""The config of a run: a dataclass for each section, and strict parsing of config files.

Values of a config file override the defaults below; flags override the file's. Every name
and every type is checked, so a field that does not exist, or that nothing could read, cannot hide.
The defaults live here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import ml_collections

from vit_jax import models
from vit_jax.core import errors
from vit_jax.core.schema import bounds, config_file, entry_points, strict
from vit_jax.core.schema import fields as schema
from vit_jax.methods import table as methods
from vit_jax.store.metrics_file import RESERVED

EVAL_KINDS = ("classification", "frozen", "pictures")

_MODEL_FIELDS = models.config_fields()


def _with_model_fields(section: type) -> type:
    """The class with a field for each field of a model, None by default."""
    for name, declared in _MODEL_FIELDS.items():
        hint = Literal[declared.choices] if declared.choices else declared.hint
        section.__annotations__[name] = hint | None
        setattr(section, name, None)
    return section


@dataclasses.dataclass(frozen=True)
@_with_model_fields
class ModelConfig:
    """The model: its name, and the fields that the models declare. None: as `name` implies.

    models.info shows them. The image size is what `input.preprocess` gives, the number of
    classes what the data has.
    """

    name: str | None = "ViT-B/16"  # None: name and architecture of init.weights

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@dataclasses.dataclass(frozen=True)
class ComponentConfig:
    """A data set of several to train on. None: the same as in `input`."""

    weight: float = 1.0  # its share of the stream, relative to the others' weights
    source: str | None = None
    data_dir: str | None = None
    split: str | None = None
    num_examples: int | None = None  # declared
    pseudo_labels: str | None = None  # None: none


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """The training data and how an example becomes an array."""

    source: str = "digits"
    data_dir: str | None = None
    split: str = "train"
    preprocess: str = "decode|inception_crop(224)|flip_lr"
    views: tuple[str, ...] = ()  # of the same image, beside that of `preprocess`: ops of each
    batch_size: int = 4096  # global and effective
    num_examples: int | None = None  # of the split or mixture, declared: checked against the data
    num_classes: int | None = None
    subset_fraction: float | None = None  # train on a part of the split; of the three at most one
    subset_examples: int | None = None
    subset_per_class: int | None = None
    balance: Literal["class"] | None = None  # all classes equally often; None: as in the data
    repeats: int = 1  # copies of an image in a batch, each augmented anew
    mixture: dict[str, ComponentConfig] = dataclasses.field(default_factory=dict)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of [0, 1] RGB; (0.5, 0.5) maps it to [-1, 1]
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    on_bad_image: Literal["fail", "skip"] = "fail"
    max_bad_fraction: float = 0.1  # of an epoch; more that are skipped end the run
    max_image_pixels: int = 100_000_000
    label: str | None = None  # the feature that is the label, or how it is derived from others
    label_weights: bool = True  # used where the data have them; False: every label weighs 1
    pseudo_labels: str | None = None  # a file of labels that a model gave; others are not read
    cache: str | None = None  # "ram", "device", or a folder that record files are copied to
    cache_bytes: int | None = None  # its limit; None: 8 GiB of memory, or what is there
    threads: int = 0  # of the host's input pipeline; 0: one a core
    timeout_secs: int = 600  # without a batch until the run gives up
    skip_steps: tuple[int, ...] = ()  # whose batches are left out; they count as steps all the same


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The loss: the mean over the batch, without skipped examples."""

    kind: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    mixup: float = 0.0  # alpha of Beta(alpha, alpha); 0: off
    cutmix: float = 0.0  # likewise; with both, each step draws one
    binarize_targets: bool = False  # sigmoid: both classes of a blend are asked for, in whole
    # A number for each class; "balanced": from the frequencies of the data's labels.
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """The optimizer. Weight decay applies to kernels only."""

    name: Literal["adam", "sgd", "rmsprop", "adafactor", "lion", "muon", "lamb"] = "adam"
    lr: float = 1e-3  # at the peak
    schedule: Literal["linear", "cosine", "constant", "rsqrt", "exponential"] = "linear"
    rsqrt_timescale_steps: int = 10_000
    exponential_factor: float = 0.97  # of the rate, after every `exponential_epochs`
    exponential_epochs: float = 2.4
    warmup_steps: int | None = None  # of the three at most one
    warmup_epochs: float | None = None
    warmup_examples: int | None = None
    cooldown_steps: int | None = None  # of the three at most one; for schedules not to 0
    cooldown_epochs: float | None = None
    cooldown_examples: int | None = None
    weight_decay: float = 0.0
    weight_decay_meaning: Literal["lr_scaled", "schedule_scaled", "coupled"] = "lr_scaled"
    grad_clip_norm: float | None = 1.0
    freeze: tuple[str, ...] = ()  # patterns of parameters that stay as they are
    lr_multipliers: tuple[str, ...] = ()  # "PATTERN=FACTOR"
    layer_decay: float | None = None  # rate of a layer by that of the layer above it
    ema_decay: float | None = None  # of the weights' EMA, for each step; None: no EMA
    grad_accum_steps: int = 1  # microbatches of a batch: less memory, the same update
    b1: float = 0.9  # these seven: see docs/optimizers.md for who reads which
    b2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    joint_qkv: bool = False  # LAMB: one trust ratio for query, key and value together
    mu_dtype: Literal["float32", "bfloat16"] = "float32"  # of the first moment or momentum


@dataclasses.dataclass(frozen=True)
class TotalConfig:
    """The length of the run: exactly one of the three."""

    steps: int | None = None
    epochs: float | None = None
    examples: int | None = None


@dataclasses.dataclass(frozen=True)
class EarlyStoppingConfig:
    """The end of a run whose metric gets no better; the learning rate's schedule stays as it is."""

    metric: str | None = None  # such as "held_out/accuracy"; None: the run goes to its end
    mode: Literal["max", "min"] = "max"
    patience: int = 5  # evaluations in a row that are no better than the best before them
    min_delta: float = 0.0  # what is no more than this is no better


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each mesh axis; -1 on one axis: all the rest."""

    replica: int = 1  # slices of a pod, joined by the data-centre network
    data: int = -1
    fsdp: int = 1  # parameters, optimizer and examples are divided
    tensor: int = 1  # heads and MLP are divided, examples are not
    shard_optimizer: bool = False  # its state over `data` as well (ZeRO-1)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Saving of checkpoints; the newest is always kept, and the last step always saved."""

    every_steps: int = 1000
    keep_last: int = 2
    keep_every_steps: int | None = None
    best_metric: str | None = None  # such as "held_out/accuracy"
    best_mode: Literal["max", "min"] = "max"


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """An evaluation. None: the same as in `input`. It always runs after the last step."""

    # "classification"; "frozen": few-shot regression, nearest neighbours, rank; "pictures"
    kind: str = "classification"
    source: str | None = None
    data_dir: str | None = None
    split: str = "test"
    preprocess: str = "decode|resize_small(256)|central_crop(224)"
    batch_size: int | None = None
    every_steps: int | None = None
    label: str | None = None
    label_threshold: float = 0.5  # a label that weighs at least this counts as right
    classes: Literal["imagenet_v2", "objectnet"] | None = None  # whose folders are ImageNet classes
    labels: str | None = None  # a file with several for each image: ReaL's real.json
    calibration: bool = False  # of the probabilities, beside accuracies
    pictures: int = 8  # of the kind "pictures": so many images of the split are looked at
    # The rest is of the kind "frozen".
    train_split: str = "train"  # that shots are drawn from, and neighbours
    train_per_class: int | None = None  # only so many of its examples of each class; None: all
    shots: tuple[int, ...] = (1, 5, 10)
    seeds: int = 3  # draws of shots, whose accuracies are averaged
    l2: float = 1024.0  # of few-shot regression
    neighbours: tuple[int, ...] = (20,)
    temperature: float = 0.07  # of the neighbours' votes
    probe_l2: tuple[float, ...] = ()  # to choose from, for logistic regression; (): leave it out
    probe_lr: tuple[float, ...] = ()  # likewise, for the same by SGD
    probe_epochs: int = 10  # of SGD

    @staticmethod
    def of_kind(kind: str) -> type:
        """The class of a kind's fields: this one, or that of a plug-in, which extends it."""
        return (kind not in EVAL_KINDS and entry_points.find("evaluators", kind)) or EvalConfig


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """The logging of a run, and its intervals."""

    every_steps: int = 50
    tensorboard: bool = True
    loggers: tuple[str, ...] = ()  # names of plug-ins that get the numbers as well
    wandb_project: str | None = None  # of Weights & Biases, which shows the run there as well
    mlflow_experiment: str | None = None  # of MLflow, likewise
    histograms_every_steps: int | None = None  # of gradients and activations; None: never
    profile_at_step: int | None = None  # the first of `profile_steps` steps, for TensorBoard
    profile_steps: int = 5
    peak_tflops: float | None = None  # of one device, for MFU; None: its datasheet's, where known


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Start from these parameters instead of random ones."""

    weights: str | None = None  # a work directory, checkpoint or file of weights
    ema: bool = False  # the EMA of these weights instead of the weights themselves
    head: Literal["keep", "reset"] = "keep"
    position_resize: Literal["bilinear", "bicubic"] = "bilinear"  # for images of another size


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters of kernels, which are trained in their place."""

    kernels: tuple[str, ...] = ()  # patterns of the kernels that have one; (): no adapters
    rank: int = 8
    alpha: float = 8.0  # an adapter's product is multiplied by alpha / rank
    train: tuple[str, ...] = ("head/.*",)  # patterns of what else is trained


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    input: InputConfig = dataclasses.field(default_factory=InputConfig)
    # How it learns; its fields are those of the dataclass of its `kind` (vit_jax/methods).
    method: Annotated[Any, strict.ByKind(methods.find, methods.SUPERVISED)] = dataclasses.field(
        default_factory=methods.Supervised
    )
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    total: TotalConfig = dataclasses.field(default_factory=TotalConfig)
    early_stopping: EarlyStoppingConfig = dataclasses.field(default_factory=EarlyStoppingConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evals: dict[str, EvalConfig] = dataclasses.field(default_factory=dict)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    seed: int = 0
    deterministic: bool = False  # on GPU: only kernels whose results repeat bit by bit (slower)


# Of numbers: [smallest value, what it stays below).
BOUNDS = bounds.BOUNDS | {f"model.{k}": f.bounds for k, f in _MODEL_FIELDS.items() if f.bounds}

# Of each group at most one may be set; an override of one takes the others back.
EXCLUSIVE = (
    ("total.steps", "total.epochs", "total.examples"),
    ("optim.warmup_steps", "optim.warmup_epochs", "optim.warmup_examples"),
    ("optim.cooldown_steps", "optim.cooldown_epochs", "optim.cooldown_examples"),
    ("input.subset_fraction", "input.subset_examples", "input.subset_per_class"),
)

# A run may be resumed although these differ: they do not affect the numbers. "*" is any name.
FREE_FIELDS = (
    "log", "evals", "checkpoint", "mesh", "early_stopping", "input.threads", "input.timeout_secs",
    "input.data_dir", "input.mixture.*.data_dir", "input.cache", "input.cache_bytes",
    "input.max_bad_fraction", "input.pseudo_labels", "input.mixture.*.pseudo_labels",
    "method.teacher",
)  # fmt: skip

# Numbers of steps: a run may be resumed with others, as long as they differ in steps to come alone.
STEP_FIELDS = ("input.skip_steps",)


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file, "configs/x.py", "x" or "x:arg", and overrides describe.

    UserError if there is no such file, or for what `resolve` refuses.
    """
    return resolve(config_file.read(path), overrides)


def resolve(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Lays `values` (nested), then `overrides` ("optim.lr=3e-4"), in order, over the defaults.

    UserError for fields that are unknown, misspelt, mistyped, out of bounds or set together.
    """
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    tree = dict(values)
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
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    done = strict.overlaid(values, sections)
    for group in EXCLUSIVE:
        section = group[0].partition(".")[0]
        given = sections.get(section)
        names = [full.partition(".")[2] for full in group]
        if isinstance(given, Mapping) and any(given.get(name) is not None for name in names):
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
    """Nested plain dictionaries with JSON's types, every field present."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _check(config: RunConfig) -> None:
    for name, limits in BOUNDS.items():
        for full_name, value in strict.values_at(config, name):
            schema.check_bounds(f"config.{full_name}", value, limits)
    schema.check(config.method, "config.method")
    for name in config.evals:
        if name in RESERVED or name.endswith("_ema") or not name.isidentifier():
            raise errors.UserError(
                f"config.evals.{name}: an evaluation's name is made of letters, digits and _, does "
                f"not end in _ema, and is none of {', '.join(RESERVED)}: these name other rows of "
                "the log."
            )
    for name in ("mean", "std"):
        if len(getattr(config.input, name)) != 3:
            raise errors.UserError(
                f"config.input.{name}={getattr(config.input, name)}: give three numbers, for red, "
                "green and blue, such as 0.5,0.5,0.5."
            )
    for group in EXCLUSIVE:
        given = [name for name in group if strict.values_at(config, name)[0][1] is not None]
        if len(given) > 1:
            raise errors.UserError(
                f"Give one of {', '.join(given)}; {len(given)} are set in the config file. "
                f"--config.{given[0]}=VALUE takes the others back."
            )
