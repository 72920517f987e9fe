"""Loads models from checkpoints of this project and from weight files of others.

files/ opens another project's file. The first of FORMATS that it fits matches its arrays with a
table of names (match.py, tables.py) and derives the model's fields from both (external.py).
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from vit_jax import models
from vit_jax.core import pytrees, synsets
from vit_jax.core.class_names import printable
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.resized_positions import METHODS, check_resizable, is_table, resize
from vit_jax.parallel import mesh as meshes
from vit_jax.store import checkpoint_dir
from vit_jax.weights import description, external
from vit_jax.weights.external import ExternalWeights
from vit_jax.weights.files import detect_format
from vit_jax.weights.online import Fetched, fetch


class Loaded(NamedTuple):
    """A model, and the metadata of its checkpoint or file."""

    model: Any  # from models.create
    name: str  # such as "ViT-B/16"
    class_names: tuple[str, ...] | None
    step: int
    thresholds: list[float] | None = None  # probabilities from which on a class is taken


class Options(TypedDict, total=False):
    """Options of `load`, `load_with_info` and `open_model`.

    Attributes:
      dtype: dtype of the computation, "float32" or "bfloat16"; default: as in training.
      ema: the EMA of the weights instead of the weights themselves.
      mesh: from `parallel.mesh.make_mesh`; parameters are sharded over it by its rules, and each
        process reads the parts that its devices hold. Default: all on the first device.
      head: "keep", or "drop": the model gives features.
      image_size: pixels, one number or (height, width), for images of another size than the
        weights'; or the size of these, if the weights do not state their rectangle.
      num_heads: of a ViT whose weights do not state it.
      position_resize: how learned positions are then resized, one of METHODS of
        models/layers/resized_positions.py; default: "bilinear", but Hugging Face's Dinov2 as its
        own model does.
      scan: whether blocks run in a loop, which compiles in a fraction of the time; default: as the
        model was trained.
    """

    dtype: str | None
    ema: bool
    mesh: Mesh | None
    head: str
    image_size: int | tuple[int, int] | None
    num_heads: int | None
    position_resize: str | None
    scan: bool | None


def load(path: str | epath.Path, **options: Unpack[Options]) -> Any:
    """Loads a trained model, in evaluation mode; an optimizer's state is not read.

    Args:
      path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder; or
        Google's .npz, a .safetensors file of Hugging Face or timm, or a folder as these have it.
        The contents tell which it is, not the name. Or the name of weights that are fetched first:
        "hf:google/vit-base-patch16-224", "timm:vit_tiny_patch16_224", an address (online/).
      options: see `Options`.

    Raises:
      DamagedError: a checkpoint cannot be read, or its bits have changed.
    """
    return load_with_info(path, **options).model


def load_with_info(path: str | epath.Path, **options: Unpack[Options]) -> Loaded:
    """Loads a model as `load` does, with its name, class names and step."""
    lazy = open_model(path, **options)
    return Loaded(
        model=nnx.merge(lazy.graph, lazy.read()),
        name=lazy.about.name,
        class_names=lazy.class_names,
        step=lazy.about.step,
        thresholds=lazy.thresholds,
    )


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """Metadata of the model in a checkpoint or in another project's file; no array is read.

    Attributes:
      folder: the step's folder, or the file.
      preprocess: how prediction prepares images.
      shapes: shapes of arrays by name; parameters are under "params/", their EMA under "ema/".
      external: the contents of another project's file; None for a checkpoint of this one.
      adapter_scale: of a checkpoint's low-rank adapters, which are merged into its kernels wherever
        these are read; None: it has none.
      fetched_by: the pinned name of weights that were fetched; None of a path.
      thresholds: by "params" and "ema", what `vit-jax evaluate --thresholds` chose for the classes.
    """

    folder: epath.Path
    name: str
    spec: Any
    num_classes: int
    class_names: tuple[str, ...] | None
    preprocess: models.Preprocess
    shapes: dict[str, tuple[int, ...]]
    external: ExternalWeights | None = None
    adapter_scale: float | None = None
    fetched_by: str | None = None
    thresholds: Mapping[str, list[float]] | None = None

    @property
    def origin(self) -> str:
        """The name that it was fetched by, or its path, for messages."""
        return self.fetched_by or str(self.folder)

    @property
    def step(self) -> int:
        """The number of updates done; 0 for other projects' files, which do not state it."""
        return 0 if self.external else int(self.folder.name)

    @property
    def tokens(self) -> TokenLayout:
        """What each of the model's tokens, and so each position, stands for."""
        stated = self.external.positions_for if self.external else None
        return self.spec.token_layout(stated or self.preprocess.image_size)

    def param_shapes(self, *, ema: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters or of their EMA; UserError if there is no EMA."""
        shapes = self._shapes_under(self._under(ema) + "/")
        return {n: shape for n, shape in shapes.items() if not pytrees.is_adapter(n)}

    def fingerprint(self) -> str:
        """A hash of its arrays, hexadecimal; of another project's file all of them are read."""
        hashed = hashlib.sha256()
        if self.external:
            for name, tensor in sorted(self.external.match.tensors.items()):
                hashed.update(name.encode() + np.ascontiguousarray(tensor.read()).tobytes())
        else:
            arrays = checkpoint_dir.read_description(self.folder)["arrays"]
            hashed.update(json.dumps(arrays, sort_keys=True).encode())
        return hashed.hexdigest()

    def parameters(self, *, ema: bool) -> int:
        """The number of parameters. UserError if there is no EMA."""
        return sum(map(math.prod, self.param_shapes(ema=ema).values()))

    def read(
        self, layout: Mapping[str, jax.ShapeDtypeStruct], *, ema: bool
    ) -> dict[str, jax.Array]:
        """Parameters with these names, verified where there are checksums; no others are read.

        Args:
          layout: shapes as in `param_shapes`; arrays without a sharding go to the first device.
          ema: the EMA instead of the parameters.
        """
        under = self._under(ema)
        if self.external:
            return {name: _place(self.external.match.array(name), x) for name, x in layout.items()}
        shapes = self._shapes_under(f"{under}/")
        factors = {name: pair for name in layout if (pair := _factors(name, shapes))}
        wanted = dict(layout)
        for name, pair in factors.items():
            wanted |= {n: _with_shape(layout[name], shapes[n]) for n in pair}
        arrays = checkpoint_dir.read_some(
            self.folder, {f"{under}/{n}": x for n, x in wanted.items()}
        )
        read = {name: arrays[f"{under}/{name}"] for name in wanted}
        for name, (a, b) in factors.items():
            assert self.adapter_scale is not None
            kernel, stacked = read[name], pytrees.is_stacked(name)
            with_adapter = merged(kernel, read[a], read[b], self.adapter_scale, stacked=stacked)
            read[name] = jax.device_put(with_adapter, kernel.sharding)
        return {name: read[name] for name in layout}

    def _shapes_under(self, under: str) -> dict[str, tuple[int, ...]]:
        return {n.removeprefix(under): s for n, s in self.shapes.items() if n.startswith(under)}

    def _under(self, ema: bool) -> str:
        if self.external and ema:
            raise UserError(f"{self.origin} has no moving average (EMA): it is one set of weights.")
        return (
            checkpoint_dir.PARAMS
            if self.external
            else checkpoint_dir.params_or_ema(self.folder, ema=ema)
        )


@dataclasses.dataclass(frozen=True)
class LazyModel:
    """A trained model whose parameters are not read yet."""

    about: CheckpointInfo
    graph: nnx.GraphDef  # merges with `read()` to the model
    # `jax.ShapeDtypeStruct` of the parameters, nested; with shardings, if a mesh was given.
    layout: Any
    preprocess: models.Preprocess
    num_classes: int
    ema: bool = False
    position_resize: str = "bilinear"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of its head's classes, if it has both."""
        return self.about.class_names if self.num_classes else None

    @property
    def thresholds(self) -> list[float] | None:
        """The thresholds of its head's classes, if it has both."""
        under = checkpoint_dir.EMA if self.ema else checkpoint_dir.PARAMS
        return (self.about.thresholds or {}).get(under) if self.num_classes else None

    def read(self) -> Any:
        """The parameters, nested as `layout`. DamagedError if they cannot be read."""
        about, wanted = self.about, pytrees.flatten(self.layout)
        shapes = about.param_shapes(ema=self.ema)
        params = about.read(
            {n: _with_shape(x, shapes.get(n, x.shape)) for n, x in wanted.items()}, ema=self.ema
        )
        new = about.spec.token_layout(self.preprocess.image_size)
        for name in filter(is_table, wanted):
            table = resize(name, params[name], about.tokens, new, method=self.position_resize)
            params[name] = jax.device_put(table, wanted[name].sharding)
        return pytrees.unflatten(params)


def open_model(
    path: str | epath.Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    mesh: Mesh | None = None,
    head: str = "keep",
    image_size: int | tuple[int, int] | None = None,
    num_heads: int | None = None,
    position_resize: str | None = None,
    scan: bool | None = None,
) -> LazyModel:
    """Opens a model by shapes and shardings alone; the arguments are those of `Options`."""
    for word, choices in (
        (head, ("keep", "drop")),
        (position_resize or "bilinear", tuple(METHODS)),
        (dtype or "float32", ("float32", "bfloat16")),
    ):
        if word not in choices:
            raise UserError(f"{word!r}. {nearest(str(word), choices)}")
    size = None if image_size is None else external.sides("image_size", image_size)
    about = checkpoint_info(path, image_size=size, num_heads=num_heads)
    changes = {f: x for f, x in (("dtype", dtype), ("scan", scan)) if x is not None}
    if head == "drop" and hasattr(about.spec, "probabilities"):
        changes["probabilities"] = "softmax"  # there are none
    spec = dataclasses.replace(about.spec, **changes, **choice.elsewhere(about.spec, dtype=dtype))
    preprocess = about.preprocess
    if size is not None and size != preprocess.image_size:
        if getattr(spec, "crop_to_patches", False):  # of images of its own size
            dataclasses.replace(spec, crop_to_patches=False).token_layout(size)
        preprocess = _with_size(preprocess, size)
    num_classes = 0 if head == "drop" else about.num_classes

    graph, variables = nnx.split(models.abstract(spec, num_classes, preprocess), nnx.Param)
    layout = nnx.to_pure_dict(variables) if mesh is None else meshes.param_layout(variables, mesh)
    shapes = about.param_shapes(ema=ema)
    same_grid = about.tokens.grid == spec.token_layout(preprocess.image_size).grid
    for name, x in pytrees.flatten(layout).items():
        check_resizable(name, shapes.get(name, x.shape), x.shape, same_grid=same_grid)
    usual = about.external.position_resize if about.external else "bilinear"
    method = position_resize or usual
    if size is None and about.external and (stated := about.external.positions_for):
        old, new = (" x ".join(map(str, pair)) for pair in (stated, preprocess.image_size))
        resized = f"its positions are resized from {old} to {new} pixels ({method})"
        _print_once(f"Notice: {about.origin}: {resized}; image_size={stated[0]} keeps them.")
    return LazyModel(about, graph, layout, preprocess, num_classes, ema, method)


def _factors(kernel: str, shapes: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the factors that a kernel's adapter has among `shapes`; () if it has none."""
    above, _, last = kernel.rpartition("/")
    names = (f"{above}/{pytrees.LORA_A}", f"{above}/{pytrees.LORA_B}")
    return names if last == "kernel" and all(name in shapes for name in names) else ()


@functools.partial(jax.jit, static_argnames="stacked")
def merged(
    kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float, *, stacked: bool
) -> jax.Array:
    """kernel + scale * a b, which computes what the kernel does with this adapter.

    The shapes are those of layers.linear.Linear; `stacked`: whether they have a leading layer axis.
    """
    product: Any = functools.partial(jnp.tensordot, axes=1, precision="highest")
    if a.ndim + b.ndim - kernel.ndim - 2 > stacked:  # projections side by side, [*in, n, H, K]
        product = jax.vmap(product, in_axes=(-2, 0), out_axes=a.ndim - 2 - stacked)
    if stacked:
        product = jax.vmap(product)
    return kernel + scale * product(a, b)


def _place(array: np.ndarray, x: jax.ShapeDtypeStruct) -> jax.Array:
    if x.sharding is None:
        return jax.device_put(array, jax.local_devices()[0])
    return jax.make_array_from_callback(array.shape, x.sharding, lambda index: array[index])


def checkpoint_info(
    path: str | epath.Path,
    *,
    image_size: tuple[int, int] | None = None,
    num_heads: int | None = None,
) -> CheckpointInfo:
    """Reads metadata of the checkpoint or file at `path`; the arguments are as in `Options`.

    What is assumed of a file, since nothing states it, is said on stderr.
    """
    fetched = fetch(path)
    if is_external(fetched.path):
        info = _read_external(fetched, image_size, num_heads)
    else:
        info = _read_info(fetched.path)
    heads = getattr(info.spec, "num_heads", None)
    if num_heads not in (None, heads):
        raise UserError(f"num_heads={num_heads}, but {fetched} has {heads or 'none'}.")
    for notice in info.external.notices() if info.external else ():
        _print_once(f"Notice: {fetched}: {notice}")
    return info


def _read_external(
    fetched: Fetched, image_size: tuple[int, int] | None, num_heads: int | None
) -> CheckpointInfo:
    from vit_jax.weights.formats import understand  # their tables: checkpoints need none

    opened = detect_format.open_weights(Path(fetched.path))
    contents = understand(
        dataclasses.replace(opened, caller_image_size=image_size, caller_num_heads=num_heads)
    )
    return CheckpointInfo(
        folder=fetched.path,
        name=contents.name,
        spec=contents.spec,
        num_classes=contents.num_classes,
        class_names=contents.class_names,
        preprocess=contents.preprocess,
        shapes={f"params/{name}": shape for name, shape in contents.match.shapes().items()},
        external=contents,
        fetched_by=fetched.name,
    )


def _read_info(path: str | epath.Path) -> CheckpointInfo:
    try:
        folder = checkpoint_dir.find(path)
    except UserError:
        if "://" not in os.fspath(path):
            detect_format.check_folder(Path(path))
        raise
    about = checkpoint_dir.read_description(folder)
    return CheckpointInfo(
        folder=folder,
        shapes={name: tuple(array["shape"]) for name, array in about["arrays"].items()},
        **description.parse(about, origin=str(folder)),
    )


@functools.cache
def _print_once(line: str) -> None:
    # jax.process_index() would initialise devices, whose number on a CPU may not be set yet.
    if not jax.distributed.is_initialized() or jax.process_index() == 0:
        print(line, file=sys.stderr)


def is_external(path: str | epath.Path) -> bool:
    """Returns whether `path` is a file or folder of another project, not a checkpoint of this one.

    It is not for names of weights: `fetch` gives their files.
    """
    # Not on gs:// and the like, where files cannot be mapped into memory.
    return "://" not in os.fspath(path) and detect_format.is_external(Path(path))


def _with_shape(x: jax.ShapeDtypeStruct, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Gives a parameter another shape; replicated, since it may not divide over the devices."""
    if shape == x.shape:
        return x
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, jax.P())
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _with_size(old: models.Preprocess, size: tuple[int, int]) -> models.Preprocess:
    """Scales a preparation of images to another size; of a rectangle both sides are covered."""
    resize, fit = old.resize, old.fit
    if resize is not None:
        sides = (resize, resize) if isinstance(resize, int) else resize
        height, width = (
            round(now * new / before)
            for now, new, before in zip(sides, size, old.image_size, strict=True)
        )
        if isinstance(resize, int) and height != width:
            fit = "cover"
        resize = height if isinstance(resize, int) and height == width else (height, width)
    crop = None if old.crop is None else size
    return dataclasses.replace(old, image_size=size, resize=resize, crop=crop, fit=fit)


# --- names of classes that weights do not name, by their number


def check_head(loaded: Loaded, checkpoint: str) -> None:
    """Raises UserError for a head of zeros, as of released weights without one."""
    if not jnp.any(loaded.model.head.kernel[...]):
        rule = "has a head of zeros, as released weights without one: --config finetune."
        raise UserError(rule, field=checkpoint)


def with_class_names(loaded: Loaded) -> tuple[Loaded, str]:
    """Adds the names of a known data set's classes to a model whose weights do not name them.

    Returns the model, and a sentence about added names or "". 1,000 classes are taken for
    ImageNet-1k, 21,843 for the released heads of ImageNet-21k, 21,841 for its archive of 2011.
    """
    names, title = names_of_classes(loaded.class_names, loaded.model.num_classes)
    loaded = loaded._replace(class_names=names)
    if not title:
        return loaded, ""
    assert names
    number = f"{len(names):,} is the number of those of {title}"
    return loaded, f"The weights do not name their classes; {number}, whose names are taken."


def names_of_classes(
    names: tuple[str, ...] | None, num_classes: int
) -> tuple[tuple[str, ...] | None, str]:
    """Returns names for a head's classes, and the data set that they are taken from or "".

    Names from the weights are made printable.
    """
    if names:
        return tuple(map(printable, names)), ""
    of_21k = synsets.names()
    in_2011 = [name for synset, name in of_21k.items() if synset not in synsets.NOT_IN_FALL_2011]
    for title, known in (
        ("ImageNet-1k", list(synsets.names_1k().values())),
        ("ImageNet-21k in the released heads", list(of_21k.values())),
        ("ImageNet-21k in the archive of fall 2011", in_2011),
    ):
        if num_classes == len(known):
            return tuple(known), title
    return None, ""
