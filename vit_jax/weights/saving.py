"""A loaded model into a file or folder of another project, or into a checkpoint of this one."""

from __future__ import annotations

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
from vit_jax.core.fields import without_a_place
from vit_jax.core.files.atomic import atomic_folder
from vit_jax.models.bit import BiTSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.models.vit import ViTSpec, token_layout
from vit_jax.nn.posemb import sincos_1d, sincos_2d
from vit_jax.store.checkpoints import ADVICE, Checkpoints
from vit_jax.weights.checkpoint import describe
from vit_jax.weights.files import npz, safetensors
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.formats import (
    dinov2,
    dinov3,
    google_npz,
    huggingface,
    huggingface_bit,
    implied_epsilons,
    timm,
    timm_resnets,
)
from vit_jax.weights.layout import Layout, sizes_of, to_theirs
from vit_jax.weights.loading import Loaded

FORMATS = ("huggingface", "timm", "google_npz", "checkpoint")
# Modules by format and kind of model.
FOLDERS: dict[tuple[str, type], Any] = {
    ("huggingface", ViTSpec): huggingface,
    ("huggingface", BiTSpec): huggingface_bit,
    ("timm", ViTSpec): timm,
    ("timm", HybridSpec): timm_resnets,
    ("timm", BiTSpec): timm_resnets,
}
POSITIONS = "positions/embedding"
FIXED = ("sincos_1d", "sincos_2d")  # position embeddings


def save(loaded: Loaded, path: str | Path, to: str, *, approximate: bool = False) -> None:
    """Writes a model.

    Args:
      loaded: of `load_with_info`.
      path: a file that ends in .npz for "google_npz", else a folder; it must not exist yet.
      to: one of FORMATS. A checkpoint is written as the only one of a work directory, of the step
        that the model says.
      approximate: also where the format's readers have slightly other epsilons in a ResNet, or
        resize images slightly otherwise; says on stderr what that changes.

    Raises:
      UserError: the format cannot hold this model, or the path cannot be written; then nothing is.
    """
    dino = _dino(loaded.model) if to == "huggingface" else None
    if to in ("huggingface", "timm", "google_npz") and not dino:
        _check_plain(loaded.model.spec, to)
    if to not in FORMATS:
        raise UserError(f"to={to!r}. {nearest(to, FORMATS)}")
    if "://" in os.fspath(path):
        raise UserError(f"{path}: weights are written to this machine's files; copy them there.")
    path = Path(path)
    if os.path.lexists(path):
        raise UserError(f"{path} is there already: give another output, or delete it.")
    if to == "google_npz" and path.suffix != ".npz":
        raise UserError(f"{path}: the name of a file with Google's arrays ends in .npz.")
    notice = ""
    try:
        if to == "checkpoint":
            _checkpoint(loaded, path)
        elif to == "google_npz":
            notice = _npz(loaded, path, approximate)
        elif dino:
            notice = _dino_folder(loaded, path, dino, approximate)
        else:
            notice = _folder(loaded, path, to, approximate)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    if notice:
        print(f"Notice: {path}: {notice}", file=sys.stderr)


def _check_plain(spec: Any, to: str) -> None:
    """UserError for a model with fields that the format has no place for."""
    differing = without_a_place(spec, to)
    if differing:
        raise UserError(
            f"--to={to} has no place for {', '.join(differing)}: write --to=checkpoint."
        )


def _params(loaded: Loaded) -> dict[str, np.ndarray]:
    """By name; fixed positions as a table, since other projects know no other."""
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(loaded.model, nnx.Param)))
    found = {name: np.asarray(jax.device_get(x)) for name, x in params.items()}
    spec = loaded.model.spec
    if isinstance(spec, ViTSpec) and spec.position_embedding in FIXED:
        found[POSITIONS] = _fixed_positions(spec, loaded.model.preprocess)
    elif POSITIONS in found and spec.has_class_token and not spec.class_position:
        # Zeros for the class token compute the same.
        found[POSITIONS] = np.pad(found[POSITIONS], ((1, 0), (0, 0)))
    return found


def _fixed_positions(spec: ViTSpec, about: models.Preprocess) -> np.ndarray:
    tokens = token_layout(spec, about.image_size)
    if spec.position_embedding == "sincos_1d":
        places = sincos_1d(tokens.num_places, spec.width)
        return tokens.pad_places(places).astype(np.float32)
    table = sincos_2d(tokens.grid, spec.width)
    return np.pad(table, ((int(tokens.class_token), 0), (0, 0))).astype(np.float32)


def _arrays(
    loaded: Loaded, layout: Layout, instead: str, *, approximate: bool = False
) -> tuple[dict[str, Any], str]:
    """(by `layout`'s names, what its readers compute otherwise)"""
    spec = loaded.model.spec
    implied_epsilons.check(spec, layout, instead, approximate=approximate)
    params = implied_epsilons.kernels_for(_params(loaded), spec, layout)
    notice = implied_epsilons.notice(params, spec, layout)
    homeless = [name for name in params if name not in layout.places]
    if homeless:
        raise UserError(
            f"{layout.title} has no place for {', '.join(homeless)}: write "
            f"--to={' or '.join(_formats_with_places(spec, params))}."
        )
    return to_theirs(layout, params, sizes_of(layout, params)), notice


def _formats_with_places(spec: Any, params: Mapping[str, np.ndarray]) -> list[str]:
    """Those that have one for all of these parameters; a checkpoint always has."""
    layouts = {to: FOLDERS[to, type(spec)].layout_for(spec)
               for to in FORMATS if (to, type(spec)) in FOLDERS}  # fmt: skip
    layouts["google_npz"] = google_npz.layout_for(spec)
    found = [to for to, layout in layouts.items() if layout.places.issuperset(params)]
    return [*found, "checkpoint"]


def _npz(loaded: Loaded, path: Path, approximate: bool) -> str:
    spec, (height, width) = loaded.model.spec, loaded.model.preprocess.image_size
    if height != width:
        raise UserError(
            f"Google's .npz cannot say that images are {height} x {width} pixels: it is for "
            "squares. Give --image_size, or write --to=huggingface or timm."
        )
    layout, instead = google_npz.layout_for(spec), "Write --to=huggingface or timm."
    arrays, notice = _arrays(loaded, layout, instead, approximate=approximate)
    path.parent.mkdir(parents=True, exist_ok=True)
    npz.write(path, arrays)
    return notice


def _folder(loaded: Loaded, path: Path, to: str, approximate: bool) -> str:
    """config.json and the like, and model.safetensors."""
    model = loaded.model
    format_ = FOLDERS.get((to, type(model.spec)))
    if format_ is None:
        raise UserError(f"{to} has no {loaded.name}: write --to=timm or google_npz.")
    about, said = implied_epsilons.preprocess(model.preprocess, to, approximate=approximate)
    documents: Mapping[str, Any] = format_.documents(
        model.spec, model.num_classes, loaded.class_names, about
    )
    layout, instead = format_.layout_for(model.spec), "Write --to=google_npz or checkpoint."
    arrays, notice = _arrays(loaded, layout, instead, approximate=approximate)
    notice = " ".join(filter(None, (notice, said)))
    if to == "huggingface" and model.num_classes:
        prefix = layout.prefixes[-1]
        arrays = {n if n.startswith("classifier.") else prefix + n: x for n, x in arrays.items()}
    _write_folder(path, arrays, documents)
    return notice


def _dino(model: Any) -> Any:
    """The module for a model that Hugging Face has as a DINOv2 or DINOv3, or None."""
    modules = (m for m in (dinov2, dinov3) if m.fits(model.spec, model.num_classes))
    return next(modules, None)


def _dino_folder(loaded: Loaded, path: Path, dino: Any, approximate: bool) -> str:
    """As `_folder`, by one of these modules."""
    model = loaded.model
    about, said = implied_epsilons.preprocess(
        model.preprocess, "huggingface", approximate=approximate
    )
    documents = dino.documents(model.spec, model.num_classes, loaded.class_names, about)
    arrays, _ = _arrays(loaded, dino.layout_for(model.spec), "Write --to=checkpoint.")
    _write_folder(path, dino.completed(arrays, model.spec, model.num_classes), documents)
    return said


def _write_folder(path: Path, arrays: Tensors, documents: Mapping[str, Any]) -> None:
    with atomic_folder(path) as folder:
        safetensors.write(folder / "model.safetensors", arrays)
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document, indent=2) + "\n")


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
    """OSErrors for the store's, which speak of a run that goes on when it is started again."""
    try:
        yield
    except UserError as error:
        for code in ADVICE:
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code)) from error
        raise
