"""Loads models from checkpoints of this project and weight files of others."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import models
from vit_jax.core import pytrees, synsets
from vit_jax.core.errors import UserError, nearest
from vit_jax.nn.position_resize import METHODS, check_resizable, is_table, resize
from vit_jax.parallel import parameters
from vit_jax.weights import checkpoint, config_consistency, json_fields, label_names
from vit_jax.weights.architecture import contradictions, is_bit
from vit_jax.weights.checkpoint import CheckpointInfo
from vit_jax.weights.external import ExternalWeights, Format
from vit_jax.weights.files import detect_format
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import FORMATS
from vit_jax.weights.layout import Layout
from vit_jax.weights.match import Match
from vit_jax.weights.match import match as match_layout

MAX_PROBLEMS_SHOWN = 40


class Loaded(NamedTuple):
    """A model, and the metadata of its checkpoint or file."""

    model: Any  # from models.create
    name: str  # such as "ViT-B/16"
    class_names: tuple[str, ...] | None
    step: int


def load(
    path: str | epath.Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    mesh: Mesh | None = None,
    head: str = "keep",
    image_size: int | tuple[int, int] | None = None,
    position_resize: str = "bilinear",
) -> Any:
    """A trained model, in evaluation mode; an optimizer's state is not read.

    Args:
      path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder; or
        Google's .npz, a .safetensors file of Hugging Face or timm, or a folder as these have it.
        The contents tell which it is, not the name.
      dtype: dtype of the computation, "float32" or "bfloat16"; default: as in training.
      ema: the moving average of the weights instead of the weights themselves.
      mesh: from `parallel.mesh.make_mesh`; parameters are sharded over it by its rules, and each
        process reads the parts that its devices hold. Default: all on the first device.
      head: "keep", or "drop": the model gives features.
      image_size: pixels, one number or (height, width), for images of another size than the
        weights'; or the size of these, if the weights do not state their rectangle.
      position_resize: how learned positions are then resized, "bilinear" or "bicubic".

    Raises:
      UserError: nothing is there; newer version or unknown layout; or there is no EMA.
      DamagedError: a checkpoint cannot be read, or its bits have changed.
    """
    return load_with_info(
        path,
        dtype=dtype,
        ema=ema,
        mesh=mesh,
        head=head,
        image_size=image_size,
        position_resize=position_resize,
    ).model


def load_with_info(
    path: str | epath.Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    mesh: Mesh | None = None,
    head: str = "keep",
    image_size: int | tuple[int, int] | None = None,
    position_resize: str = "bilinear",
    scan: bool | None = None,
) -> Loaded:
    """Like `load`, with the name, class names and step.

    `scan`: whether blocks run in a loop, which compiles in a fraction of the time; default: as the
    model was trained.
    """
    for word, choices in (
        (head, ("keep", "drop")),
        (position_resize, tuple(METHODS)),
        (dtype or "float32", ("float32", "bfloat16")),
    ):
        if word not in choices:
            raise UserError(f"{word!r}. {nearest(str(word), choices)}")
    size = None if image_size is None else json_fields.sides("image_size", image_size)
    about = checkpoint_info(path, image_size=size)
    changes = {f: x for f, x in (("dtype", dtype), ("scan", scan)) if x is not None}
    spec = dataclasses.replace(about.spec, **changes)
    preprocess = about.preprocess if size is None else _at(about.preprocess, size)
    num_classes = 0 if head == "drop" else about.num_classes

    def make() -> Any:
        return models.build(
            spec,
            num_classes=num_classes,
            image_size=preprocess.image_size,
            preprocess=preprocess,
            rngs=nnx.Rngs(0),
        )

    graph, variables = nnx.split(nnx.eval_shape(make), nnx.Param)
    layout = nnx.to_pure_dict(variables) if mesh is None else parameters.layout(variables, mesh)
    wanted = pytrees.flatten(layout)
    there = about.param_shapes(ema=ema)
    for name, x in wanted.items():
        check_resizable(name, there.get(name, x.shape), x.shape)
    params = about.read(
        {n: _of_shape(x, there.get(n, x.shape)) for n, x in wanted.items()}, ema=ema
    )
    new = models.token_layout(spec, preprocess.image_size)
    for name in filter(is_table, wanted):
        resized = resize(name, params[name], about.tokens, new, method=position_resize)
        params[name] = jax.device_put(resized, wanted[name].sharding)
    return Loaded(
        model=nnx.merge(graph, pytrees.unflatten(params)),
        name=about.name,
        class_names=_class_names(about) if num_classes else None,
        step=about.step,
    )


def checkpoint_info(
    path: str | epath.Path, *, image_size: tuple[int, int] | None = None
) -> CheckpointInfo:
    """Metadata of the checkpoint or file at `path`; for the arguments see `load`.

    Raises:
      UserError: nothing is there, or as in `load`.
    """
    if not is_external(path):
        return checkpoint.read_info(path)
    there = understand(detect_format.open_weights(Path(path)), image_size)
    return CheckpointInfo(
        folder=epath.Path(path),
        name=there.name,
        spec=there.spec,
        num_classes=there.num_classes,
        class_names=there.class_names,
        preprocess=there.preprocess,
        shapes={f"params/{name}": shape for name, shape in there.shapes().items()},
        external=there,
    )


def understand(opened: Opened, image_size: tuple[int, int] | None = None) -> ExternalWeights:
    """The model in another project's file.

    `image_size` is in pixels, for files that do not state the rectangle of their positions.

    Raises:
      UserError: no known layout, with the first difference of each; or one that does not fit, with
        all differences; or a model that cannot be computed here.
    """
    format_, match = _matched(opened)
    config_consistency.check(opened, format_.sizes(match, opened.config or {}))
    return format_.reads(opened, match, image_size)


def _matched(opened: Opened) -> tuple[Format, Match]:
    formats = [f for f in FORMATS if f.recognises(opened)]
    if not formats:
        readable = ", ".join(repr(kind) for f in FORMATS for kind in f.model_types)
        raise UserError(
            f"{opened.path} holds a model of the type {(opened.config or {})['model_type']!r}; of "
            f"Hugging Face's models {readable} can be read."
        )
    tried = [(f, _match(f, layout, opened)) for f in formats for layout in f.layouts(opened)]
    for format_, match in tried:
        if not match.misfits and not contradictions(match):
            return format_, match
    problems = lambda match: list(match.problems or contradictions(match))
    matches = [match for _, match in tried]
    nearest_match = min(matches, key=lambda m: m.misfits)
    known = len(nearest_match.tensors) - sum(
        " is unexpected" in line for line in nearest_match.problems
    )
    # All differences from the nearest layout, if most of the file's names are its own.
    if len(matches) == 1 or 2 * known > len(nearest_match.tensors):
        lines = problems(nearest_match)
        if len(lines) > MAX_PROBLEMS_SHOWN:
            rest = len(lines) - MAX_PROBLEMS_SHOWN
            lines = [*lines[:MAX_PROBLEMS_SHOWN], f"... and {rest} more"]
        raise UserError(
            f"{opened.path} looks like {nearest_match.layout.title}, but is not the same:\n  "
            + "\n  ".join(lines)
        )
    raise UserError(
        f"{opened.path} has none of the layouts that are known here; tried, and the first "
        "difference of each:\n  "
        + "\n  ".join(f"{match.layout.title}: {problems(match)[0]}" for match in matches)
    )


def _match(format_: Format, layout: Layout, opened: Opened) -> Match:
    """Matches a file to `layout`; in some layouts the arrays do not show num_heads."""
    tensors = format_.unpacked(opened.tensors)
    first = match_layout(layout, tensors, {})
    if format_.heads is None or is_bit(first) or not first.sizes["D"]:
        return first
    heads = format_.heads(opened, first)
    if first.sizes["D"] % heads:
        heads = 1  # only to compare the rest: config_consistency.check refuses it
    return match_layout(layout, tensors, {"H": heads})


def with_class_names(loaded: Loaded) -> tuple[Loaded, str]:
    """(the model with class names, also where its weights have none but these are known; a sentence
    about that, or "").

    The released heads of ImageNet-21k come without names; no others have so many classes.
    """
    names = tuple(synsets.names().values())
    if loaded.class_names or loaded.model.num_classes != len(names):
        return loaded, ""
    return loaded._replace(class_names=names), (
        f"The weights do not name their classes; {len(names):,} is the number of ImageNet-21k's "
        "in the released heads, so those names are taken, in their order."
    )


def is_external(path: str | epath.Path) -> bool:
    """Whether `path` is a file or folder of another project, not a checkpoint of this one."""
    # Files on gs:// and the like are excluded: they cannot be mapped into memory.
    return "://" not in os.fspath(path) and detect_format.is_external(Path(path))


def _class_names(about: CheckpointInfo) -> tuple[str, ...] | None:
    """Names of classes; stderr says which classes of another project's file have none."""
    notice = label_names.notice(about.class_names or ()) if about.external else ""
    if notice and jax.process_index() == 0:
        print(f"Notice: {about.folder}: {notice}", file=sys.stderr)
    return about.class_names


def _of_shape(x: jax.ShapeDtypeStruct, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """An array of the shape that the weights have; positions are resized later."""
    if shape == x.shape:
        return x
    # A different number of positions may not divide over the devices.
    sharding = x.sharding and jax.sharding.NamedSharding(x.sharding.mesh, jax.P())
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _at(old: models.Preprocess, size: tuple[int, int]) -> models.Preprocess:
    """The same preparation of images at another size."""
    resize: tuple[int, int] | int | None = None
    if isinstance(old.resize, int):
        resize = round(old.resize * min(size) / min(old.image_size))
    elif old.resize is not None:
        height, width = (
            round(now * new / before)
            for now, new, before in zip(old.resize, size, old.image_size, strict=True)
        )
        resize = height, width
    return dataclasses.replace(
        old, image_size=size, resize=resize, crop=None if old.crop is None else size
    )
