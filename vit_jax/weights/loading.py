"""Models from whatever holds weights: checkpoints of this project, and files of others."""

from __future__ import annotations

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
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest
from vit_jax.nn.position_resize import METHODS, check_resizable, is_table, resize
from vit_jax.parallel import parameters
from vit_jax.weights import checkpoint, label_names
from vit_jax.weights.checkpoint import CheckpointInfo
from vit_jax.weights.external import understand
from vit_jax.weights.files import detect_format
from vit_jax.weights.formats import dinov2, dinov3, json_fields


class Loaded(NamedTuple):
    """A model and what its checkpoint or file says besides."""

    model: Any  # of models.create
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
        What it is, is told by what is in it.
      dtype: of the computation, "float32" or "bfloat16"; default: as it was trained.
      ema: the moving average of the weights instead of the weights themselves.
      mesh: of `dist.mesh.make_mesh`, over which the parameters are divided by its rules: each
        process reads the parts that its devices hold. Default: the first device has them all.
      head: "keep", or "drop": the model gives features.
      image_size: pixels, one number or (height, width), if it is to take images of another size
        than the weights; or the size of these, where they do not say of which rectangle they are.
      position_resize: how learned positions are resized then, "bilinear" or "bicubic".

    Raises:
      UserError: nothing there, of a newer version or an unknown layout; or no moving average.
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
    """As `load`, with the rest of the description.

    `scan`: whether blocks are run in a loop, which compiles in a fraction of the time; default: as
    the model was trained.
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
    """What the checkpoint or file at `path`, as in `load`, says about itself.

    `image_size` is for files whose positions are no square and that do not say which rectangle.

    Raises:
      UserError: nothing there, or what `load` says.
    """
    if not is_external(path):
        return checkpoint.read_info(path)
    opened = detect_format.open_weights(Path(path))
    dino = next((family for family in (dinov2, dinov3) if family.reads(opened)), None)
    found = dino.understand(opened) if dino else understand(opened, image_size)
    return CheckpointInfo(
        folder=epath.Path(path),
        name=found.name,
        spec=found.spec,
        num_classes=found.num_classes,
        class_names=found.class_names,
        preprocess=found.preprocess,
        shapes={f"params/{name}": shape for name, shape in found.shapes().items()},
        external=found,
    )


def is_external(path: str | epath.Path) -> bool:
    """Whether it is a file or folder of another project, and no checkpoint of this one."""
    # Files on gs:// and the like are not looked at: they are no local ones that can be mapped.
    return "://" not in os.fspath(path) and detect_format.is_external(Path(path))


def _class_names(about: CheckpointInfo) -> tuple[str, ...] | None:
    """Those of the weights; says which classes of another project's file have none."""
    told = label_names.notice(about.class_names or ()) if about.external else ""
    if told and jax.process_index() == 0:
        print(f"Notice: {about.folder}: {told}", file=sys.stderr)
    return about.class_names


def _of_shape(x: jax.ShapeDtypeStruct, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """With as many positions as the weights have, which are resized later."""
    if shape == x.shape:
        return x
    # Another number may not divide over the devices.
    sharding = x.sharding and jax.sharding.NamedSharding(x.sharding.mesh, jax.P())
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _at(old: models.Preprocess, size: tuple[int, int]) -> models.Preprocess:
    """Images prepared alike, at another size."""
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
