"""Writing a loaded model, in another project's format or as a checkpoint of this one."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import atomic_folder
from vit_jax.core.schema.fields import without_a_place
from vit_jax.models.vit import ViTSpec, token_layout
from vit_jax.nn.posemb import sincos_1d, sincos_2d
from vit_jax.store.checkpoints import ADVICE, Checkpoints
from vit_jax.weights import implied_epsilons
from vit_jax.weights.checkpoint import describe
from vit_jax.weights.external import Format
from vit_jax.weights.files import npz, safetensors
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.formats import FORMATS
from vit_jax.weights.layout import sizes_of, to_theirs
from vit_jax.weights.loading import Loaded

DESTINATIONS = (*dict.fromkeys(f.destination for f in FORMATS), "checkpoint")
POSITIONS = "positions/embedding"
FIXED = ("sincos_1d", "sincos_2d")  # position embeddings


def save(loaded: Loaded, path: str | Path, to: str, *, approximate: bool = False) -> None:
    """Writes a model.

    Args:
      loaded: as `load_with_info` gives it.
      path: a file that ends in .npz for "google_npz", else a folder; it must not exist yet.
      to: one of DESTINATIONS. A checkpoint is written as the only one of a work directory, with the
        model's step.
      approximate: also write where the format's readers have slightly different epsilons in a
        ResNet, or resize images slightly differently; stderr reports the change.

    Raises:
      UserError: the format cannot hold this model, or the path cannot be written. Nothing is
        written then.
    """
    if to not in DESTINATIONS:
        raise UserError(f"to={to!r}. {nearest(to, DESTINATIONS)}")
    format_ = None if to == "checkpoint" else _format(loaded, to)
    if "://" in os.fspath(path):
        raise UserError(f"{path}: weights are written to this machine's files; copy them there.")
    path = Path(path)
    if os.path.lexists(path):
        raise UserError(f"{path} is there already: give another output, or delete it.")
    if to == "google_npz" and path.suffix != ".npz":
        raise UserError(f"{path}: the name of a file with Google's arrays ends in .npz.")
    notice = ""
    try:
        if format_ is None:
            _checkpoint(loaded, path)
        else:
            notice = _external(loaded, path, format_, approximate)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    if notice:
        print(f"Notice: {path}: {notice}", file=sys.stderr)


def _format(loaded: Loaded, to: str) -> Format:
    """The format for this model. UserError if there is none, or it lacks a place for a field."""
    model, formats = loaded.model, [f for f in FORMATS if f.destination == to]
    format_ = next((f for f in formats if f.holds(model.spec, model.num_classes)), None)
    if format_ is None or format_.is_plain:
        homeless = without_a_place(model.spec, to)
        if homeless:
            raise UserError(
                f"--to={to} has no place for {', '.join(homeless)}: write --to=checkpoint."
            )
    if format_ is None:
        raise UserError(f"{to} has no {loaded.name}: write --to=timm or google_npz.")
    return format_


def _params(loaded: Loaded) -> dict[str, np.ndarray]:
    """Parameters by name; fixed positions as a table, the only form that other projects have."""
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(loaded.model, nnx.Param)))
    arrays = {name: np.asarray(jax.device_get(x)) for name, x in params.items()}
    spec = loaded.model.spec
    if isinstance(spec, ViTSpec) and spec.position_embedding in FIXED:
        arrays[POSITIONS] = _fixed_positions(spec, loaded.model.preprocess)
    elif POSITIONS in arrays and spec.has_class_token and not spec.class_position:
        # Zeros for the class token compute the same function.
        arrays[POSITIONS] = np.pad(arrays[POSITIONS], ((1, 0), (0, 0)))
    return arrays


def _fixed_positions(spec: ViTSpec, about: models.Preprocess) -> np.ndarray:
    tokens = token_layout(spec, about.image_size)
    if spec.position_embedding == "sincos_1d":
        places = sincos_1d(tokens.num_places, spec.width)
        return tokens.pad_places(places).astype(np.float32)
    table = sincos_2d(tokens.grid, spec.width)
    return np.pad(table, ((int(tokens.class_token), 0), (0, 0))).astype(np.float32)


def _external(loaded: Loaded, path: Path, format_: Format, approximate: bool) -> str:
    """Writes the files of a format; returns what its readers compute differently."""
    model, to, notices = loaded.model, format_.destination, []
    about = model.preprocess
    if to != "google_npz":  # which states only the size of images
        about, notice = implied_epsilons.preprocess(about, to, approximate=approximate)
        notices.append(notice)
    documents = format_.documents(model.spec, model.num_classes, loaded.class_names, about)
    arrays, notice = _arrays(loaded, format_, approximate=approximate)
    if to == "google_npz":
        path.parent.mkdir(parents=True, exist_ok=True)
        npz.write(path, arrays)
    else:
        with atomic_folder(path) as folder:
            safetensors.write(folder / "model.safetensors", arrays)
            for name, document in documents.items():
                (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    return " ".join(filter(None, (notice, *notices)))


def _arrays(loaded: Loaded, format_: Format, *, approximate: bool) -> tuple[Tensors, str]:
    """(arrays by the format's names, what its readers compute differently)"""
    spec = loaded.model.spec
    layout = format_.layout_for(spec)
    implied_epsilons.check(spec, layout, format_.hint, approximate=approximate)
    params = implied_epsilons.kernels_for(_params(loaded), spec, layout)
    notice = implied_epsilons.notice(params, spec, layout)
    homeless = [name for name in params if name not in layout.places]
    if homeless:
        raise UserError(
            f"{layout.title} has no place for {', '.join(homeless)}: write "
            f"--to={' or '.join(_formats_with_places(loaded.model, params))}."
        )
    arrays = to_theirs(layout, params, sizes_of(layout, params))
    return format_.packed(arrays, spec, loaded.model.num_classes), notice


def _formats_with_places(model: Any, params: Mapping[str, np.ndarray]) -> list[str]:
    """Formats with a place for all of these parameters; a checkpoint always has."""
    there = [
        f.destination
        for f in FORMATS
        if f.holds(model.spec, model.num_classes)
        and f.layout_for(model.spec).places.issuperset(params)
    ]
    return [*dict.fromkeys(there), "checkpoint"]


def _checkpoint(loaded: Loaded, path: Path) -> None:
    model = loaded.model
    spec = dataclasses.asdict(model.spec)
    info = models.info(
        loaded.name,
        num_classes=model.num_classes,
        image_size=model.preprocess.image_size,
        **spec,
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
        for code in ADVICE:
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code)) from error
        raise
