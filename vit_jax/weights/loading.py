"""Loads models from checkpoints of this project and weight files of others.

Another project's file is opened by files/; the one of FORMATS that it fits matches its arrays with
a table of names (match.py, layout.py), checks what config.json says of them (config_json.py) and
derives the model (external.py).
"""

import dataclasses
import functools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, nearest, safe_repr
from vit_jax.core.schema import renamed
from vit_jax.nn.kernels import choice
from vit_jax.nn.posemb import METHODS, check_resizable, is_table, resize
from vit_jax.parallel import mesh as meshes
from vit_jax.store import checkpoint_dir
from vit_jax.weights import config_json
from vit_jax.weights.checkpoint_info import CheckpointInfo
from vit_jax.weights.external import NOTHING_GIVEN, ExternalWeights, Given
from vit_jax.weights.files import detect_format
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import FORMATS
from vit_jax.weights.match import Match, MisfitError, read_without
from vit_jax.weights.online.fetching import Fetched, fetch

FORMAT_VERSION = 1  # of a checkpoint's metadata that this code writes and reads
WITH_ADAPTERS = 2  # of one with adapters, whose kernels alone are not the model's


class Loaded(NamedTuple):
    """A model, and the metadata of its checkpoint or file."""

    model: Any  # from models.create
    name: str  # such as "ViT-B/16"
    class_names: tuple[str, ...] | None
    step: int


class Options(TypedDict, total=False):
    """What `load`, `load_with_info` and `find` take beside the path, each with a default.

    Attributes:
      dtype: dtype of the computation, "float32" or "bfloat16"; default: as in training.
      ema: the EMA of the weights instead of the weights themselves.
      mesh: from `parallel.mesh.make_mesh`; parameters are sharded over it by its rules, and each
        process reads the parts that its devices hold. Default: all on the first device.
      head: "keep", or "drop": the model gives features.
      image_size: pixels, one number or (height, width), for images of another size than the
        weights'; or the size of these, if the weights do not state their rectangle.
      num_heads: of a ViT whose weights do not state it.
      position_resize: how learned positions are then resized, one of `posemb.METHODS`; default:
        "bilinear", but Hugging Face's Dinov2 as its own model does.
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


DEFAULTS: Options = {
    "dtype": None,
    "ema": False,
    "mesh": None,
    "head": "keep",
    "image_size": None,
    "num_heads": None,
    "position_resize": None,
    "scan": None,
}


def load(path: str | epath.Path, **options: Unpack[Options]) -> Any:
    """A trained model, in evaluation mode; an optimizer's state is not read.

    Args:
      path: a work directory (its newest checkpoint), its checkpoints folder or a step's folder; or
        Google's .npz, a .safetensors file of Hugging Face or timm, or a folder as these have it.
        The contents tell which it is, not the name. Or the name of weights that are fetched first:
        "hf:google/vit-base-patch16-224", "timm:vit_tiny_patch16_224", an address (online/names.py).
      options: see `Options`.

    Raises:
      UserError: nothing is there; newer version or unknown layout; or there is no EMA.
      DamagedError: a checkpoint cannot be read, or its bits have changed.
    """
    return load_with_info(path, **options).model


def load_with_info(path: str | epath.Path, **options: Unpack[Options]) -> Loaded:
    """Like `load`, with the name, class names and step."""
    there = find(path, **options)
    return Loaded(
        model=nnx.merge(there.graph, there.read()),
        name=there.about.name,
        class_names=there.class_names,
        step=there.about.step,
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """A trained model whose parameters are not read yet.

    Attributes:
      about: the checkpoint or file.
      graph: merges with `read()` to the model.
      layout: jax.ShapeDtypeStruct of the parameters, nested; with shardings, if a mesh was given.
      preprocess: how its images must be prepared.
      num_classes: of its head; 0 if it has none.
    """

    about: CheckpointInfo
    graph: nnx.GraphDef
    layout: Any
    preprocess: models.Preprocess
    num_classes: int
    ema: bool = False
    position_resize: str = "bilinear"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of its head's classes, if it has both."""
        return _class_names(self.about) if self.num_classes else None

    def read(self) -> Any:
        """The parameters, nested as `layout`. DamagedError if they cannot be read."""
        about, wanted = self.about, pytrees.flatten(self.layout)
        there = about.param_shapes(ema=self.ema)
        params = about.read(
            {n: _of_shape(x, there.get(n, x.shape)) for n, x in wanted.items()}, ema=self.ema
        )
        new = about.spec.token_layout(self.preprocess.image_size)
        for name in filter(is_table, wanted):
            table = resize(name, params[name], about.tokens, new, method=self.position_resize)
            params[name] = jax.device_put(table, wanted[name].sharding)
        return pytrees.unflatten(params)


def find(path: str | epath.Path, **options: Unpack[Options]) -> Found:
    """The model that `load_with_info` would load, by shapes and shardings alone. UserError."""
    if unknown := set(options) - set(DEFAULTS):
        raise TypeError(f"no options of weights: {', '.join(sorted(unknown))}")
    o = DEFAULTS | options
    dtype, image_size = o["dtype"], o["image_size"]
    for word, choices in (
        (o["head"], ("keep", "drop")),
        (o["position_resize"] or "bilinear", tuple(METHODS)),
        (dtype or "float32", ("float32", "bfloat16")),
    ):
        if word not in choices:
            raise UserError(f"{word!r}. {nearest(str(word), choices)}")
    size = None if image_size is None else config_json.sides("image_size", image_size)
    about = checkpoint_info(path, image_size=size, num_heads=o["num_heads"])
    changes = {f: x for f, x in (("dtype", dtype), ("scan", o["scan"])) if x is not None}
    if o["head"] == "drop" and hasattr(about.spec, "probabilities"):
        changes["probabilities"] = "softmax"  # there are none
    spec = dataclasses.replace(about.spec, **changes, **choice.elsewhere(about.spec, dtype=dtype))
    preprocess = about.preprocess
    if size is not None and size != preprocess.image_size:
        _check_size(about, size)
        preprocess = _at(preprocess, size)
    num_classes = 0 if o["head"] == "drop" else about.num_classes

    def make() -> Any:
        return models.build(
            spec,
            num_classes=num_classes,
            image_size=preprocess.image_size,
            preprocess=preprocess,
            rngs=nnx.Rngs(0),
        )

    graph, variables = nnx.split(nnx.eval_shape(make), nnx.Param)
    mesh, ema = o["mesh"], o["ema"]
    layout = nnx.to_pure_dict(variables) if mesh is None else meshes.param_layout(variables, mesh)
    there = about.param_shapes(ema=ema)
    for name, x in pytrees.flatten(layout).items():
        check_resizable(name, there.get(name, x.shape), x.shape)
    usual = about.external.position_resize if about.external else "bilinear"
    method = o["position_resize"] or usual
    if size is None and about.external and (stated := about.external.positions_for):
        old, new = (" x ".join(map(str, pair)) for pair in (stated, preprocess.image_size))
        _say_once(
            f"Notice: {about.origin}: its images have {new} pixels, for which the positions are "
            f"resized from {old} ({method}); image_size={stated[0]} keeps them."
        )
    return Found(about, graph, layout, preprocess, num_classes, ema, method)


def checkpoint_info(
    path: str | epath.Path,
    *,
    image_size: tuple[int, int] | None = None,
    num_heads: int | None = None,
) -> CheckpointInfo:
    """Metadata of the checkpoint or file at `path`; for the arguments see `load` and `Options`.

    What is assumed of a file, since nothing states it, is said on stderr.

    Raises:
      UserError: nothing is there, or as in `load`.
    """
    fetched = fetch(path)
    if not is_external(fetched.path):
        info = _own(fetched.path)
        _check_heads(fetched, info.spec, num_heads)
        return info
    given = Given(image_size, num_heads)
    there = understand(detect_format.open_weights(Path(fetched.path)), given)
    _check_heads(fetched, there.spec, num_heads)
    for notice in there.notices():
        _say_once(f"Notice: {fetched.name or fetched.path}: {notice}")
    return CheckpointInfo(
        folder=fetched.path,
        name=there.name,
        spec=there.spec,
        num_classes=there.num_classes,
        class_names=there.class_names,
        preprocess=there.preprocess,
        shapes={f"params/{name}": shape for name, shape in there.shapes().items()},
        external=there,
        fetched_by=fetched.name,
    )


def _own(path: str | epath.Path) -> CheckpointInfo:
    """Metadata of one of this project's checkpoints."""
    try:
        folder = checkpoint_dir.find(path)
    except UserError:
        if "://" not in os.fspath(path):
            detect_format.check_folder(Path(path))
        raise
    about = checkpoint_dir.read_description(folder)
    if about.get("format_version") not in (FORMAT_VERSION, WITH_ADAPTERS):
        raise UserError(
            f"{folder} has format version {about.get('format_version')}, this vit_jax reads "
            f"{FORMAT_VERSION} and {WITH_ADAPTERS}: install the version that wrote it."
        )
    fields = renamed.fields(about)["model"]
    names, name = about["class_names"], fields.pop("name")
    images: dict[str, Any] = {
        field: tuple(x) if isinstance(x, list) else x for field, x in about["preprocess"].items()
    }
    return CheckpointInfo(
        folder=folder,
        name=name,
        spec=models.spec_of_json(name, fields),
        num_classes=about["num_classes"],
        class_names=tuple(names) if names else None,
        preprocess=models.Preprocess(**images),
        shapes={name: tuple(array["shape"]) for name, array in about["arrays"].items()},
        adapter_scale=about.get("adapter_scale"),
    )


def describe(
    info: models.ModelInfo,
    *,
    num_classes: int,
    class_names: tuple[str, ...] | None,
    preprocess: models.Preprocess,
    adapter_scale: float | None = None,
    init_weights: str | None = None,
) -> dict[str, Any]:
    """A checkpoint's metadata as JSON: all that `load` and prediction need.

    `init_weights` is the pinned name of the weights that training began with.
    """
    of_adapters = {} if adapter_scale is None else {"adapter_scale": adapter_scale}
    return {
        "format_version": WITH_ADAPTERS if of_adapters else FORMAT_VERSION,
        **of_adapters,
        **({} if init_weights is None else {"init_weights": init_weights}),
        "model": {"name": info.name, **info.spec},
        "num_classes": num_classes,
        "class_names": list(class_names) if class_names else None,
        "preprocess": dataclasses.asdict(preprocess),
    }


def _check_heads(fetched: Fetched, spec: Any, given: int | None) -> None:
    """UserError for another number of heads than weights have that state it."""
    heads = getattr(spec, "num_heads", None)
    if given not in (None, heads):
        raise UserError(
            f"num_heads={given}, but {fetched} has {heads or 'none'}: leave it out; it is for "
            "weights that do not state it."
        )


@functools.cache
def _say_once(line: str) -> None:
    if jax.process_index() == 0:
        print(line, file=sys.stderr)


def understand(opened: Opened, given: Given = NOTHING_GIVEN) -> ExternalWeights:
    """The model in another project's file.

    Raises:
      UserError: no known layout, with the first difference of each; or one that does not fit, with
        all differences; or a model that cannot be computed here.
    """
    note = ""
    try:
        there = _read(opened, given)
    except MisfitError as misfit:
        read = lambda tensors: _read(dataclasses.replace(opened, tensors=tensors), given)
        there, note = read_without(opened.path, opened.tensors, misfit.args[0], read)
    return dataclasses.replace(there, notes=tuple(filter(None, (opened.note, note))))


def _read(opened: Opened, given: Given) -> ExternalWeights:
    """The model in the first format that the file fits. MisfitError with all matches if none."""
    matches: list[Match] = []
    for format_ in FORMATS:
        if format_.recognises(opened):
            try:
                return format_.reads(opened, given)
            except MisfitError as misfit:
                matches += misfit.args[0]
    if matches:
        raise MisfitError(matches)
    readable = ", ".join(repr(kind) for f in FORMATS for kind in f.model_types)
    kind = safe_repr((opened.config or {})["model_type"])
    raise UserError(
        f"{opened.path} holds a model of the type {kind}; of Hugging Face's models {readable} "
        "can be read."
    )


def is_external(path: str | epath.Path) -> bool:
    """Whether `path` is a file or folder of another project, not a checkpoint of this one.

    Names of weights (online/names.py) are none: `fetch` says where their files are.
    """
    # Files on gs:// and the like are excluded: they cannot be mapped into memory.
    return "://" not in os.fspath(path) and detect_format.is_external(Path(path))


def _check_size(about: CheckpointInfo, size: tuple[int, int]) -> None:
    """UserError for images of another size than the model's, which its patches do not divide."""
    spec = about.spec
    if getattr(spec, "crop_to_patches", False):  # of images of its own size
        spec = dataclasses.replace(spec, crop_to_patches=False)
    try:
        spec.token_layout(size)
    except UserError as error:
        sides = [max(1, round(side / spec.stride)) * spec.stride for side in size]
        raise UserError(
            f"image_size={size} does not divide into patches of {spec.stride} pixels, which "
            f"{about.origin} has; nearest: {tuple(sides)}."
        ) from error


def _class_names(about: CheckpointInfo) -> tuple[str, ...] | None:
    """Names of classes; stderr says which classes of another project's file have none."""
    notice = config_json.notice_of_nameless(about.class_names or ()) if about.external else ""
    if notice:
        _say_once(f"Notice: {about.origin}: {notice}")
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
