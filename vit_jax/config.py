"""What a run is: one dataclass a section, and the strict way from a config file to them.

A config file lays its values over the defaults below; flags lay theirs over the file's. Every name
and every type is checked, so a field that does not exist, or that nothing could read, cannot hide.
The defaults live here and nowhere else.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_collections

from vit_jax.core import errors


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which network. None: what `name` says (models.info shows it).

    The image size is what `input.preprocess` gives, the number of classes what the data has.
    """

    name: str = "ViT-B/16"
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    pool: Literal["cls", "avg"] | None = None  # class token or global average pooling
    pre_logits: bool | None = None  # dense(width) + tanh before the head
    dropout: float | None = None
    stochastic_depth: float | None = None  # at the last block; rises linearly from 0 at the first
    gelu: Literal["tanh", "exact"] | None = None
    head_bias: float | None = None  # initial value; -10 for sigmoid losses over many classes
    dtype: Literal["float32", "bfloat16"] | None = None  # of the computation, not of parameters
    scan: bool | None = None  # blocks by one compiled loop, or unrolled
    remat: Literal["none", "dots", "dots_no_batch", "full"] | None = None


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """The training data and how an example becomes an array."""

    source: str = "digits"
    data_dir: str | None = None
    split: str = "train"
    preprocess: str = "decode|inception_crop(224)|flip_lr"
    batch_size: int = 4096  # global and effective
    num_examples: int | None = None  # declared: checked against the data where there is data
    num_classes: int | None = None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of [0, 1] RGB; (0.5, 0.5) maps it to [-1, 1]
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    on_bad_image: Literal["fail", "skip"] = "fail"
    max_image_pixels: int = 100_000_000
    threads: int = 0  # of the host's input pipeline; 0: one a core


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """What is minimised: the mean over the batch, skipped examples left out."""

    kind: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    mixup: float = 0.0  # alpha of Beta(alpha, alpha); 0: off


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """How parameters follow gradients. Weight decay: kernels only."""

    name: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3  # at the peak
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int | None = None  # of the three at most one
    warmup_epochs: float | None = None
    warmup_examples: int | None = None
    weight_decay: float = 0.0
    weight_decay_meaning: Literal["lr_scaled", "schedule_scaled", "coupled"] = "lr_scaled"
    grad_clip_norm: float | None = 1.0
    accumulate: int = 1  # parts that a batch is worked off in: less memory, the same update
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    mu_dtype: Literal["float32", "bfloat16"] = "float32"  # of Adam's first moment, SGD's momentum


@dataclasses.dataclass(frozen=True)
class TotalConfig:
    """How long: exactly one of the three."""

    steps: int | None = None
    epochs: float | None = None
    examples: int | None = None


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices along each axis of the mesh; -1: all there are."""

    data: int = -1


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep; the newest is always kept, and the last step always saved."""

    every_steps: int = 1000
    keep_last: int = 2
    keep_every_steps: int | None = None
    best_metric: str | None = None  # such as "test/accuracy"
    best_mode: Literal["max", "min"] = "max"


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """One evaluation. None: the same as in `input`. It always runs after the last step."""

    kind: str = "classification"
    source: str | None = None
    data_dir: str | None = None
    split: str = "test"
    preprocess: str = "decode|resize_small(256)|central_crop(224)"
    batch_size: int | None = None
    every_steps: int | None = None


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What is written and shown, and how often."""

    every_steps: int = 50
    tensorboard: bool = True
    profile_at_step: int | None = (
        None  # a trace of `profile_steps` steps from here, for TensorBoard
    )
    profile_steps: int = 5
    peak_tflops: float | None = None  # of one device, for MFU; None: its datasheet's, where known


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Start from these parameters instead of random ones."""

    weights: str | None = None  # a work directory or checkpoint of this project
    head: Literal["keep", "reset"] = "keep"


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    input: InputConfig = dataclasses.field(default_factory=InputConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    total: TotalConfig = dataclasses.field(default_factory=TotalConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evals: dict[str, EvalConfig] = dataclasses.field(default_factory=dict)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    seed: int = 0
    deterministic: bool = False  # on GPU: only kernels whose results repeat bit by bit (slower)


# Smallest value of a field, and what it stays below; of a tuple: of each of its numbers. None is
# always within. What a string or the data decide is checked where it is used.
BOUNDS: dict[str, tuple[float, float]] = {
    "model.width": (1, 2**20),
    "model.depth": (1, 2**20),
    "model.mlp_dim": (1, 2**20),
    "model.heads": (1, 2**20),
    "model.dropout": (0, 1),
    "model.stochastic_depth": (0, 1),
    "input.batch_size": (1, 2**31),
    "input.num_examples": (1, 2**53),
    "input.num_classes": (1, 2**31),
    "input.std": (1e-6, math.inf),
    "input.max_image_pixels": (1, math.inf),
    "input.threads": (0, 1024),
    "loss.label_smoothing": (0, 1),
    "loss.mixup": (0, math.inf),
    "optim.lr": (0, math.inf),
    "optim.warmup_steps": (0, 2**31),
    "optim.warmup_epochs": (0, 1e6),
    "optim.warmup_examples": (0, 2**53),
    "optim.weight_decay": (0, math.inf),
    "optim.grad_clip_norm": (1e-30, math.inf),
    "optim.accumulate": (1, 2**31),
    "optim.b1": (0, 1),
    "optim.b2": (0, 1),
    "optim.eps": (0, math.inf),
    "optim.momentum": (0, 1),
    "total.steps": (1, 2**31),  # the state counts them in an int32
    "total.epochs": (0, 1e6),
    "total.examples": (1, 2**53),
    "mesh.data": (-1, math.inf),
    "checkpoint.every_steps": (1, math.inf),
    "checkpoint.keep_last": (1, math.inf),
    "checkpoint.keep_every_steps": (1, math.inf),
    "evals.*.batch_size": (1, 2**31),
    "evals.*.every_steps": (1, math.inf),
    "log.every_steps": (1, math.inf),
    "log.profile_at_step": (1, math.inf),
    "log.profile_steps": (1, math.inf),
    "log.peak_tflops": (1e-6, math.inf),
    "seed": (0, 2**31),
}


# Beginnings of names in the log that no evaluation may have.
RESERVED = ("train", "speed", "input", "step")

# A run may be resumed although these differ: they do not touch the numbers.
FREE_FIELDS = ("log", "evals", "checkpoint", "mesh", "input.threads", "input.data_dir")


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The run that a file and its overrides describe.

    Args:
      path: "configs/x.py" or "configs/x.py:arg"; the file's `get_config(arg=None)` returns a
        ConfigDict.
      overrides: "optim.lr=3e-4" and the like, applied in their order.

    Raises:
      UserError: no such file; unknown, misspelt or mistyped fields.
    """
    return resolve(_call_get_config(path), overrides)


def resolve(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Lays `values` (nested) and then `overrides` ("optim.lr=3e-4") over the defaults, strictly."""
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    tree = dict(values)
    for override in overrides:
        name, eq, text = override.partition("=")
        if not eq:
            raise errors.UserError(f"Override {override!r} has no value: write name=value.")
        _set(tree, name.split("."), text, name)
    config = _build(RunConfig, tree, "")
    _check_bounds(config)
    return config


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries with JSON's types, every field present."""
    return _plain(dataclasses.asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _check_bounds(config: RunConfig) -> None:
    for name, (smallest, below) in BOUNDS.items():
        for where, value in _find(config, name.split("."), ""):
            numbers = value if isinstance(value, tuple) else (value,)
            if any(x is not None and not smallest <= x < below for x in numbers):
                limit = "" if below == math.inf else f" and below {below}"
                raise errors.UserError(f"config.{where}={value}: give at least {smallest}{limit}.")
    for name in config.evals:
        if name in RESERVED or not name.isidentifier():
            raise errors.UserError(
                f"config.evals.{name}: an evaluation's name is made of letters, digits and _, and "
                f"is none of {', '.join(RESERVED)}, which name other rows of the log."
            )
    for name in ("mean", "std"):
        if len(getattr(config.input, name)) != 3:
            raise errors.UserError(
                f"config.input.{name}={getattr(config.input, name)}: give three numbers, for red, "
                "green and blue."
            )


def _find(value: Any, names: list[str], where: str) -> list[tuple[str, Any]]:
    """The values of a dotted name, "*" standing for every key, with their full names."""
    if not names:
        return [(where.lstrip("."), value)]
    name, *rest = names
    if name == "*":
        return [found for k, v in value.items() for found in _find(v, rest, f"{where}.{k}")]
    return _find(getattr(value, name), rest, f"{where}.{name}")


def _call_get_config(path: str) -> Mapping[str, Any]:
    file_name, _, arg = path.partition(":")
    file = Path(file_name)
    if not file.is_file():
        there = [str(p) for p in file.parent.glob("*.py")]
        raise errors.UserError(f"No config file {file_name}. {errors.nearest(file_name, there)}")
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.UserError(f"--config={file_name} is no Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        values = module.get_config(arg or None)
    except ValueError as error:  # how a config file refuses an argument
        raise errors.UserError(f"{file_name}: {error}") from error
    except Exception as error:
        raise errors.UserError(
            f"{file_name} cannot be used; it needs a function get_config(arg=None) that returns a "
            f"ConfigDict. {type(error).__name__}: {error}"
        ) from error
    if not isinstance(values, Mapping | ml_collections.ConfigDict):
        raise errors.UserError(
            f"get_config of {file_name} returns {values!r}; it has to return a ConfigDict."
        )
    return values


def _set(tree: dict[str, Any], names: list[str], text: str, path: str) -> None:
    """Puts one override, still as text, into the nested values, copying on the way down."""
    name, *rest = names
    if not rest:
        tree[name] = _Text(text)
        return
    below = tree.get(name)
    if isinstance(below, ml_collections.ConfigDict):
        below = below.to_dict()
    if below is not None and not isinstance(below, Mapping):
        raise errors.UserError(f"config.{path}: {name} is not a section.")
    tree[name] = dict(below or {})
    _set(tree[name], rest, text, path)


class _Text(str):
    """A value as it was written on the command line: its type is still to be found."""


def _build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of dataclass `cls` from nested values; names and types are checked."""
    if not isinstance(values, Mapping):
        raise errors.UserError(f"config.{where} is a section, got {values!r}.")
    hints = typing.get_type_hints(cls)
    for name in map(str, values):
        if name not in hints:
            full = f"{where}.{name}".lstrip(".")
            raise errors.UserError(f"config has no field {full}. {errors.nearest(name, hints)}")
    done = {n: _typed(v, hints[n], f"{where}.{n}".lstrip(".")) for n, v in values.items()}
    return cls(**done)


def _typed(value: Any, hint: Any, where: str) -> Any:
    """`value` as type `hint`, or a UserError that says what the field takes."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise errors.UserError(f"config.{where} maps names to sections, got {value!r}.")
        item = typing.get_args(hint)[1]
        there = {str(k): v for k, v in value.items() if not _is_none(v)}  # None takes an item away
        return {k: _typed(v, item, f"{where}.{k}") for k, v in there.items()}
    options = _options(hint)
    for option in sorted(options, key=lambda o: o is not type(None)):  # "None" is None, no string
        try:
            return _as(value, option)
        except (ValueError, SyntaxError, TypeError):
            continue
    wanted = " or ".join(_spell(o) for o in options)
    choices = [o for o in options if isinstance(o, str)]
    help = f" {errors.nearest(str(value), choices)}" if choices else ""
    raise errors.UserError(f"config.{where} takes {wanted}, got {str(value)!r}.{help}")


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a hint: types, literal strings, None."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return tuple(o for h in typing.get_args(hint) for o in _options(h))
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return (hint,)


def _spell(option: Any) -> str:
    if option is type(None):
        return "None"
    return _SPELLED.get(option, repr(option))


def _as(value: Any, option: Any) -> Any:
    """`value` as one alternative, or ValueError. Text from the command line is parsed."""
    if isinstance(option, str):  # one choice of a Literal
        if value != option:
            raise ValueError(value)
        return option
    if typing.get_origin(option) is tuple:
        items = ast.literal_eval(value) if isinstance(value, _Text) else value
        if not isinstance(items, list | tuple):
            raise ValueError(value)
        return tuple(_as(item, typing.get_args(option)[0]) for item in items)
    return _READERS[option](value)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, _Text) and value.lower() == "none")


def _as_none(value: Any) -> None:
    if not _is_none(value):
        raise ValueError(value)


def _as_bool(value: Any) -> bool:
    if isinstance(value, _Text) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _as_int(value: Any) -> int:
    if isinstance(value, _Text):
        return int(value)  # "1_000" is a whole number, "1e3" and "1.0" are none
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value


def _as_float(value: Any) -> float:
    if not isinstance(value, int | float | _Text) or isinstance(value, bool):
        raise ValueError(value)
    if not math.isfinite(float(value)):
        raise ValueError(value)
    return float(value)


def _as_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return str(value)


_SPELLED = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[float, ...]: "numbers such as 0.5,0.5,0.5",
}
_READERS: dict[Any, Callable[[Any], Any]] = {
    type(None): _as_none,
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_str,
}
