"""Writing a loaded model, in another project's format or as a checkpoint of this one."""

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from flax import nnx

from vit_jax import models
from vit_jax.core import cloud, pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import atomic_folder
from vit_jax.core.schema.fields import without_a_place
from vit_jax.models.layers.posemb import sincos
from vit_jax.weights.description import describe
from vit_jax.weights.external import Documents, Format
from vit_jax.weights.files import Tensors, npz, safetensors
from vit_jax.weights.formats import FORMATS
from vit_jax.weights.loading import Loaded
from vit_jax.weights.tables import Layout, is_standardized, to_theirs

DESTINATIONS = (*dict.fromkeys(f.destination for f in FORMATS), "checkpoint")
POSITIONS = "positions/embedding"
_EPSILON, _OF, _NORM = "weight_epsilon", "weight_epsilon_of", "group_norm_epsilon"
# Different epsilons of a ResNet, up to this one, change its results little.
MAX_APPROXIMATE_EPSILON = 1e-5
Params = dict[str, np.ndarray]  # by name


def save(loaded: Loaded, path: str | Path, to: str, *, approximate: bool = False) -> None:
    """Writes a model.

    Args:
      loaded: as `load_with_info` gives it.
      path: a file that ends in .npz for "google_npz", else a folder, on this machine or at gs://;
        it must not exist yet.
      to: one of DESTINATIONS. A checkpoint is written as the only one of a work directory, with the
        model's step.
      approximate: also write where the format's readers have slightly different epsilons in a
        ResNet, or resize images in another way; stderr reports the change.

    Raises:
      UserError: the format cannot hold this model, or the path cannot be written. Nothing is
        written then.
    """
    check_output(path, to)
    contents = None if to == "checkpoint" else _contents_or_advice(loaded, to, approximate)
    with cloud.staged(path) as local:
        try:
            if contents is None:
                _checkpoint(loaded, Path(local))
            else:
                _write(contents, Path(local))
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error}.") from error
    if contents and contents.notice:
        print(f"Notice: {path}: {contents.notice}", file=sys.stderr)


def check_output(path: str | Path, to: str) -> None:
    """Raises UserError for a path or format that `save` does not take; arguments are as there."""
    if to not in DESTINATIONS:
        raise UserError(f"to={to!r}. {nearest(to, DESTINATIONS)}")
    cloud.check_new(path)
    if to == "google_npz" and Path(path).suffix != ".npz":
        raise UserError(f"{path}: the name of a file with Google's arrays ends in .npz.")


class _Contents(NamedTuple):
    """What is written of a model in another project's format.

    Attributes:
      arrays: by the format's names.
      documents: the JSON files beside them, by name.
      notice: what its readers compute differently, or it does not say; "" if nothing.
    """

    arrays: Tensors
    documents: Documents
    notice: str


def _contents_or_advice(loaded: Loaded, to: str, approximate: bool) -> _Contents:
    """The contents. UserError if the format cannot hold this model, which names those that can."""
    params = _params(loaded)
    try:
        return _contents(loaded, params, to, approximate)
    except UserError as error:
        formats = []
        for other in DESTINATIONS[:-1]:
            with contextlib.suppress(UserError):
                _contents(loaded, params, other, approximate=False)
                formats.append(other)
        formats.append("checkpoint")
        raise UserError(
            f"{error} It can be written by vit-jax convert --to={' or '.join(formats)}, and as a "
            "program by vit-jax export --to=onnx or stablehlo."
        ) from error


def _contents(loaded: Loaded, params: Params, to: str, approximate: bool) -> _Contents:
    """The contents. UserError if the format cannot hold this model."""
    model, format_ = loaded.model, _format(loaded, to)
    about = model.preprocess
    if to == "google_npz":  # which states only the size of images
        image_notices = [_unstated_notice(loaded, format_)]
    else:
        about, notice = pillows(about, to, approximate=approximate)
        image_notices = [notice, _resizing_notice(about, format_, approximate=approximate)]
    documents = format_.documents(model.spec, model.num_classes, loaded.class_names, about)
    arrays, epsilon_notice = _arrays(loaded, params, format_, approximate)
    return _Contents(arrays, documents, " ".join(filter(None, (epsilon_notice, *image_notices))))


def _write(contents: _Contents, path: Path) -> None:
    if not contents.documents:  # a file of arrays alone
        path.parent.mkdir(parents=True, exist_ok=True)
        npz.write(path, contents.arrays)
        return
    with atomic_folder(path) as folder:
        safetensors.write(folder / "model.safetensors", contents.arrays)
        for name, document in contents.documents.items():
            (folder / name).write_text(json.dumps(document, indent=2) + "\n")


def _format(loaded: Loaded, to: str) -> Format:
    """The format for this model. UserError if there is none, or it lacks a place for a field."""
    model, formats = loaded.model, [f for f in FORMATS if f.destination == to]
    format_ = next((f for f in formats if f.holds(model.spec, model.num_classes)), None)
    unplaced = without_a_place(model.spec, to, () if format_ is None else format_.states)
    if unplaced:
        raise UserError(f"--to={to} has no place for {', '.join(unplaced)}.")
    if format_ is None:
        raise UserError(f"{to} has no {loaded.name}.")
    return format_


def _params(loaded: Loaded) -> Params:
    """Parameters by name; fixed positions as a table, the only form that other projects have."""
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(loaded.model, nnx.Param)))
    arrays = {name: np.asarray(jax.device_get(x)) for name, x in params.items()}
    spec = loaded.model.spec
    kind = getattr(spec, "position_embedding", None)
    if kind in ("sincos_1d", "sincos_2d"):
        tokens = spec.token_layout(loaded.model.preprocess.image_size)
        # Registers have no rows there; a distillation token, which counts as one here, has.
        tokens = tokens._replace(registers=int(spec.distillation_token))
        arrays[POSITIONS] = sincos(kind, tokens, spec.width).astype(np.float32)
    elif POSITIONS in arrays and spec.has_class_token and not spec.class_position:
        # Zeros for the class token compute the same function.
        arrays[POSITIONS] = np.pad(arrays[POSITIONS], ((1, 0), (0, 0)))
    if getattr(spec, "distillation_token", False) and kind == "learned_1d":
        # Its position is a row of the table there.
        row = arrays.pop("distillation_position", np.zeros_like(arrays["distillation_token"]))
        arrays[POSITIONS] = np.insert(arrays[POSITIONS], 1, row, axis=0)
    return arrays


def _arrays(
    loaded: Loaded, params: Params, format_: Format, approximate: bool
) -> tuple[Tensors, str]:
    """(arrays by the format's names, what its readers compute differently)"""
    spec = loaded.model.spec
    layout = format_.layout_for(spec)
    differing = _differing(spec, layout)
    if differing and not (approximate and _is_close(spec, layout, differing)):
        listed = [f"{f}={getattr(spec, f)} (there: {layout.computes[f]})" for f in differing]
        close = " vit-jax convert --approximate writes it, and says how near it is."
        raise UserError(
            f"{layout.title} says nothing of these, and its readers would compute something else: "
            f"{', '.join(listed)}." + (close if _is_close(spec, layout, differing) else "")
        )
    if _scalable(spec, layout) and layout.computes[_EPSILON] != spec.weight_epsilon:
        # w / sqrt(var(w) + a) is the same for c w and c^2 a.
        factor = np.float32(math.sqrt(layout.computes[_EPSILON] / spec.weight_epsilon))
        params = {n: x * factor if is_standardized(n) else x for n, x in params.items()}
    unplaced = [name for name in params if name not in layout.places]
    if unplaced:
        raise UserError(f"{layout.title} has no place for {', '.join(unplaced)}.")
    arrays = format_.packed(to_theirs(layout, params), spec, loaded.model.num_classes)
    return arrays, _notice(params, spec, layout, differing) if differing else ""


def _checkpoint(loaded: Loaded, path: Path) -> None:
    from vit_jax.store.checkpoints import Checkpoints  # imports Orbax: other formats need none

    model = loaded.model
    spec = dataclasses.asdict(model.spec)
    info = models.info(
        loaded.name, num_classes=model.num_classes, image_size=model.preprocess.image_size, **spec
    )
    about = describe(
        info,
        num_classes=model.num_classes,
        class_names=loaded.class_names,
        preprocess=model.preprocess,
    )
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    with atomic_folder(path) as folder, _plain_errors():
        store = Checkpoints(
            epath.Path(folder) / "checkpoints",
            keep_last=1,
            keep_every_steps=None,
            best_metric=None,
            best_mode="max",
        )
        with contextlib.closing(store):
            store.save(loaded.step, {"params": params}, about, {})


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raises OSErrors instead of the store's messages, which advise to restart the run."""
    try:
        yield
    except UserError as error:
        from vit_jax.store.checkpoints import ADVICE

        for code in ADVICE:
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code)) from error
        raise


# --- what a format's readers imply, compared with the model


def pillows(
    about: models.Preprocess, to: str, *, approximate: bool
) -> tuple[models.Preprocess, str]:
    """(preparation that readers of `to` can do, what that changes or "").

    They resize as Pillow does: never by area, and always with antialias. UserError where that
    differs and `approximate` is not set.
    """
    if about.resize is None or (about.interpolation != "area" and about.antialias):
        return about, ""
    instead = "box" if about.interpolation == "area" else about.interpolation
    ours = about.interpolation + ("" if about.interpolation == "area" else " without antialias")
    if not approximate:
        raise UserError(
            f"{to} says how images are resized, but cannot say {ours}, as this model's are. "
            f"vit-jax convert --approximate writes what is nearest, {instead} with antialias."
        )
    near = dataclasses.replace(about, interpolation=instead, antialias=True)
    return near, f"its images are resized by {instead} with antialias instead of {ours}."


def _unstated_notice(loaded: Loaded, format_: Format) -> str:
    """What a format of arrays alone does not say of this model; "" if nothing."""
    ours = dataclasses.asdict(loaded.model.preprocess)
    theirs = dataclasses.asdict(format_.prepares(loaded.model.preprocess))
    unstated = [f"{name}={x}" for name, x in ours.items() if x != theirs[name]]
    unstated += ["names of classes"] if loaded.class_names else []
    return f"it holds arrays alone, and not {', '.join(unstated)}." if unstated else ""


def _resizing_notice(about: models.Preprocess, format_: Format, *, approximate: bool) -> str:
    """What readers of a format resize in another way, by more than its rounding; "" if nothing.

    UserError where that is so and `approximate` is not set.
    """
    there = format_.prepares(about)
    (fit, sides), (their_fit, their_sides) = map(_resizing, (about, there))
    apart = max(abs(ours - theirs) for ours, theirs in zip(sides, their_sides, strict=True))
    if fit == their_fit and apart <= 1:
        return ""
    change = f"{_resizing_words(there)} instead of {_resizing_words(about)}"
    if not approximate:
        raise UserError(
            f"{format_.destination} resizes all images, by one factor for both sides, and pads "
            f"with the mean. It would prepare this model's with {change}. vit-jax convert "
            "--approximate writes that."
        )
    return f"its images are prepared with {change}."


def _resizing(about: models.Preprocess) -> tuple[Any, tuple[int, int]]:
    """((fit, padding), (height, width)); a shorter side is the same as covering a square."""
    resize = about.resize or about.image_size
    # Images that already have their size are the same, resized to it or not; a crop takes others.
    fit = "none" if about.crop and about.resize is None else about.fit
    if isinstance(resize, int):
        fit, resize = "cover", (resize, resize)
    return (fit, about.padding), resize


def _resizing_words(about: models.Preprocess) -> str:
    fit = f", fit={about.fit}" if isinstance(about.resize, tuple) else ""
    fill = "" if about.padding is None else f", fill={about.padding}"
    return f"resize={about.resize}{fit}{fill}"


def _scalable(spec: Any, layout: Layout) -> bool:
    """Whether both add an epsilon to the variance of weights: a scale compensates for it."""
    there = layout.computes.get(_OF)
    return there == "variance" == getattr(spec, _OF, None) and spec.weight_epsilon > 0


def _differing(spec: Any, layout: Layout) -> list[str]:
    """Fields whose implied value differs, where no scale compensates for it."""
    return [
        field
        for field, theirs in layout.computes.items()
        if getattr(spec, field) != theirs and not (field == _EPSILON and _scalable(spec, layout))
    ]


def _is_close(spec: Any, layout: Layout, differing: list[str]) -> bool:
    """Whether only epsilons differ, and are small in both."""
    if not {_EPSILON, _OF, _NORM}.issuperset(differing):
        return False
    epsilons = [x for f in (_EPSILON, _NORM) for x in (getattr(spec, f), layout.computes[f])]
    return max(epsilons) <= MAX_APPROXIMATE_EPSILON


def _notice(params: Params, spec: Any, layout: Layout, differing: list[str]) -> str:
    """A sentence about what readers compute differently; `params` are as they are written."""
    theirs, changes = layout.computes, []
    if _EPSILON in differing or _OF in differing:
        change = _change_of_kernels(params, spec, layout)
        changes.append(f"standardised kernels by up to {change:.2g} of their size")
    if _NORM in differing:
        half = abs(spec.group_norm_epsilon - theirs[_NORM]) / 2
        changes.append(
            f"what group norms give by up to {half:.2g} / variance of the group, relatively"
        )
    listed = [f"{f}={theirs[f]} instead of {getattr(spec, f)}" for f in differing]
    return (
        f"only nearly the same model: {layout.title} is computed with {', '.join(listed)}, which "
        f"changes {' and '.join(changes)}."
    )


def _change_of_kernels(params: Params, spec: Any, layout: Layout) -> float:
    """The largest relative change of standardised kernels."""

    def divisor(variance: np.ndarray, epsilon: float, epsilon_of: str) -> np.ndarray:
        if epsilon_of == "variance":
            return np.sqrt(variance + epsilon)
        return np.sqrt(variance) + epsilon

    largest = 0.0
    for name, kernel in params.items():
        if is_standardized(name):
            variance = np.var(kernel, axis=(-4, -3, -2), dtype=np.float64)  # [..., k, k, I, O]
            ours = divisor(variance, spec.weight_epsilon, spec.weight_epsilon_of)
            theirs = divisor(variance, layout.computes[_EPSILON], layout.computes[_OF])
            change = np.abs(ours / theirs - 1)[variance > 0]  # else it is 0 in both
            largest = max(largest, float(change.max(initial=0)))
    return largest
