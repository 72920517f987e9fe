"""Writing a loaded model, in another project's format or as a checkpoint of this one."""

import contextlib
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from flax import nnx

from vit_jax import models
from vit_jax.core import cloud, pytrees
from vit_jax.core.errors import UserError, nearest, writing
from vit_jax.core.files import atomic_folder
from vit_jax.core.schema.fields import without_a_place
from vit_jax.models.layers.posemb import sincos
from vit_jax.weights.description import describe
from vit_jax.weights.external import Documents, Format, ModelToWrite, lacks
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
    """
    check_output(path, to)
    contents = None if to == "checkpoint" else _contents_or_advice(loaded, to, approximate)
    with cloud.staged(path) as local, writing(path):
        if contents is None:
            _checkpoint(loaded, Path(local))
        else:
            _write(contents, Path(local))
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
        raise UserError(f"{error} --to={' or '.join(formats)} can write it, and export.") from error


def _contents(loaded: Loaded, params: Params, to: str, approximate: bool) -> _Contents:
    model, format_ = loaded.model, _format(loaded, to)
    about = model.preprocess
    if to == "google_npz":  # which states only the size of images
        image_notices = [_unstated_notice(loaded, format_)]
    else:
        about, notice = _preparation(about, format_, approximate=approximate)
        image_notices = [notice]
    to_write = ModelToWrite(model.spec, model.num_classes, loaded.class_names, about)
    documents = format_.documents(to_write)
    arrays, epsilon_notice = _arrays(to_write, params, format_, approximate)
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
    model, formats = loaded.model, [f for f in FORMATS if f.destination == to]
    format_ = next((f for f in formats if f.holds(model.spec, model.num_classes)), None)
    unplaced = without_a_place(model.spec, to, () if format_ is None else format_.states)
    if unplaced:
        raise UserError(f"--to={to} has no place for {', '.join(unplaced)}.")
    if format_ is None:
        lacks(to, {"name": loaded.name})
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
    model: ModelToWrite, params: Params, format_: Format, approximate: bool
) -> tuple[Tensors, str]:
    spec = model.spec
    layout = format_.layout_for(spec)
    differing = _differing(spec, layout)
    if differing and not (approximate and _is_close(spec, layout, differing)):
        listed = [f"{f}={getattr(spec, f)} (there: {layout.computes[f]})" for f in differing]
        close = "vit-jax convert --approximate writes it."
        rule = f"does not say {', '.join(listed)}, and would be computed otherwise."
        cure = close if _is_close(spec, layout, differing) else ""
        raise UserError(rule, field=layout.title, cure=cure)
    if _scalable(spec, layout) and layout.computes[_EPSILON] != spec.weight_epsilon:
        # w / sqrt(var(w) + a) is the same for c w and c^2 a.
        factor = np.float32(math.sqrt(layout.computes[_EPSILON] / spec.weight_epsilon))
        params = {n: x * factor if is_standardized(n) else x for n, x in params.items()}
    unplaced = [name for name in params if name not in layout.places]
    if unplaced:
        raise UserError(f"{layout.title} has no place for {', '.join(unplaced)}.")
    arrays: Tensors = to_theirs(layout, params)
    if format_.packed is not None:
        arrays = format_.packed(arrays, model)
    listed = [f"{f}={layout.computes[f]} instead of {getattr(spec, f)}" for f in differing]
    nearly = f"only nearly the same model: {layout.title} is computed with {', '.join(listed)}."
    return arrays, nearly if differing else ""


def _checkpoint(loaded: Loaded, path: Path) -> None:
    from vit_jax.store.checkpoint_dir import PARAMS
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
    if loaded.thresholds:
        about["thresholds"] = {PARAMS: loaded.thresholds}
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    with atomic_folder(path) as folder:
        store = Checkpoints(
            epath.Path(folder) / "checkpoints",
            keep_last=1,
            keep_every_steps=None,
            best_metric=None,
            best_mode="max",
        )
        with contextlib.closing(store):
            store.save(loaded.step, {"params": params}, about, {})


# --- what a format's readers imply, compared with the model


def _unstated_notice(loaded: Loaded, format_: Format) -> str:
    """A notice of what a format of arrays alone does not say of this model; "" if nothing."""
    ours = dataclasses.asdict(loaded.model.preprocess)
    assert format_.prepares is not None
    theirs = dataclasses.asdict(format_.prepares(loaded.model.preprocess))
    unstated = [f"{name}={x}" for name, x in ours.items() if x != theirs[name]]
    unstated += ["names of classes"] if loaded.class_names else []
    return f"it holds arrays alone, and not {', '.join(unstated)}." if unstated else ""


def _preparation(
    about: models.Preprocess, format_: Format, *, approximate: bool
) -> tuple[models.Preprocess, str]:
    """(preparation of images that readers of a format can do, what that changes or "").

    They resize as Pillow does: never by area, and always with antialias; timm's also resize every
    image.
    """
    near = about
    if about.resize is not None:
        filter_ = "box" if about.interpolation == "area" else about.interpolation
        near = dataclasses.replace(about, interpolation=filter_, antialias=True)
    theirs = near if format_.prepares is None else format_.prepares(near)
    names = ["interpolation", "antialias"]
    (fit, sides), (their_fit, their_sides) = map(_resizing, (near, theirs))
    if fit != their_fit or max(abs(a - b) for a, b in zip(sides, their_sides, strict=True)) > 1:
        names += ["resize", "fit", "padding"]
    changes = [
        f"{name}={getattr(theirs, name)} instead of {getattr(about, name)}"
        for name in names
        if getattr(theirs, name) != getattr(about, name)
    ]
    if changes and not approximate:
        rule = f"would prepare images with {', '.join(changes)}; --approximate writes that."
        raise UserError(rule, field=format_.destination)
    return near, f"its images are prepared with {', '.join(changes)}." if changes else ""


def _resizing(about: models.Preprocess) -> tuple[Any, tuple[int, int]]:
    """((fit, padding), (height, width)); a shorter side is the same as covering a square."""
    resize = about.resize or about.image_size
    # Images that already have their size are the same, resized to it or not; a crop takes others.
    fit = "none" if about.crop and about.resize is None else about.fit
    if isinstance(resize, int):
        fit, resize = "cover", (resize, resize)
    return (fit, about.padding), resize


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
    """Returns whether only epsilons differ, and are small in both."""
    if not {_EPSILON, _OF, _NORM}.issuperset(differing):
        return False
    epsilons = [x for f in (_EPSILON, _NORM) for x in (getattr(spec, f), layout.computes[f])]
    return max(epsilons) <= MAX_APPROXIMATE_EPSILON
