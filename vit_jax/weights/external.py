"""Models in other projects' files: what a file holds, and how each format is read and written."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit_spec import DEPTHS, ROOT_WIDTH, name_of_units
from vit_jax.models.vit_spec import SIZES
from vit_jax.weights.config_json import ClassNames, section
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.layout import Layout
from vit_jax.weights.match import Match

Documents = dict[str, dict[str, Any]]
# Default for files that do not state it: ResNets, and ViTs without positions, which take any size.
USUAL_IMAGE_SIZE = (224, 224)
USUAL_HEAD_SIZE = 64
# Letters of sizes, by field of a ViT.
_LETTERS = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}
_POSITIONS = "positions/embedding"
_DISTILLATION_POSITION = "distillation_position"  # a row of the other projects' table


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """The contents of a file, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from the fields that it implies.
      num_classes: 0 for a model without a head.
      match: gives the parameters.
      pads_class_position: whether the class token has no position, which equals one of zeros.
    """

    name: str
    spec: Any
    num_classes: int
    class_names: ClassNames
    preprocess: models.Preprocess
    match: Match
    pads_class_position: bool

    def array(self, name: str) -> np.ndarray:
        """The model's parameter of this name, float32."""
        if name == _DISTILLATION_POSITION:
            table = self.match.ours(_POSITIONS)
            return np.zeros_like(table[0]) if self.pads_class_position else table[1]
        array = self.match.ours(name)
        if name == _POSITIONS and self.pads_class_position:
            return np.concatenate([np.zeros_like(array[:1]), array])
        if name == _POSITIONS and self.match.has("distillation_token"):
            return np.delete(array, 1, axis=0)
        return array

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, by name."""
        shapes = self.match.shapes()
        if self.pads_class_position:
            rows, width = shapes[_POSITIONS]
            shapes[_POSITIONS] = (rows + 1, width)
        elif self.match.has("distillation_token"):
            rows, width = shapes[_POSITIONS]
            shapes[_POSITIONS] = (rows - 1, width)
        if self.match.has("distillation_token"):
            shapes[_DISTILLATION_POSITION] = shapes[_POSITIONS][1:]
        return shapes


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of model in one project's format, for reading and writing.

    All functions raise UserError for what cannot be read, computed here, or written.

    Attributes:
      destination: its name in `convert --to`; several kinds of model may share it.
      reads: the model in a file; MisfitError if its arrays fit none of the format's layouts. The
        pair is the size of the images that the caller gave, for files that do not say it.
      holds: whether it is for models of this spec and number of classes.
      layout_for: the layout that a model is written in.
      documents: the JSON files beside the arrays, by name.
      hint: the end of the message about a model that it cannot hold.
      model_types: the `model_type` of config.json that it reads.
      needs_type: whether it reads no others, such as those without a config.json.
      packed: arrays to write, as the format's files have them.
      is_plain: whether fields of `core.schema.fields` without a place elsewhere are refused.
    """

    destination: str
    reads: Callable[[Opened, tuple[int, int] | None], ExternalWeights]
    holds: Callable[[Any, int], bool]
    layout_for: Callable[[Any], Layout]
    documents: Callable[[Any, int, ClassNames, models.Preprocess], Documents]
    hint: str
    model_types: tuple[str, ...] = ()
    needs_type: bool = False
    packed: Callable[[Tensors, Any, int], Tensors] = lambda tensors, *_: tensors
    is_plain: bool = True

    def recognises(self, opened: Opened) -> bool:
        """Whether a file may be one, by its kind and its config.json."""
        config = opened.config or {}
        if opened.kind == "npz" or self.destination == "google_npz":
            return opened.kind == "npz" and self.destination == "google_npz"
        if "model_type" in config:
            return config["model_type"] in self.model_types
        return self.destination == "timm" or not (self.needs_type or "architecture" in config)


def external_weights(
    match: Match,
    preprocess: models.Preprocess,
    *,
    fields: Mapping[str, Any] | None = None,
    class_names: ClassNames = None,
    pads_class_position: bool = False,
    name: str | None = None,
) -> ExternalWeights:
    """The model of a matched file.

    Args:
      fields: fields of the model that the arrays do not show, or do not show correctly.
      name: default: derived from the sizes.
    """
    name_by_sizes, of_arrays = (_bit if match.is_bit else _vit)(match)
    name = name or name_by_sizes
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **{**of_arrays, **match.layout.computes, **(fields or {})}),
        num_classes=match.sizes.get("C", 0),
        class_names=class_names,
        preprocess=preprocess,
        match=match,
        pads_class_position=pads_class_position,
    )


def vit_sizes(match: Match) -> dict[str, int]:
    """The sizes of a ViT's blocks, by field."""
    return {field: match.sizes[letter] for field, letter in _LETTERS.items()}


def with_heads(
    opened: Opened, match: Match, default: int | None = None, *, required: bool = False
) -> Match:
    """The same with the num_heads of config.json, or `default`, or of the published size.

    For layouts whose arrays do not show it; heads of other sizes have 64 channels. UserError if
    config.json says another thing than a number, or nothing although that is `required`.
    """
    config, width = opened.config or {}, match.sizes["D"]
    stated = config.get("num_attention_heads", section(config, "model_args").get("num_heads"))
    if stated is not None or required:
        if type(stated) is not int or stated < 1:
            raise UserError(f"{opened.path}: its config.json says {stated!r} heads.")
        heads = stated
    else:
        size = _size_name({**match.sizes, "H": 0})
        usual = SIZES[size]["num_heads"] if size else max(1, width // USUAL_HEAD_SIZE)
        heads = default or usual
    heads = heads if width % heads == 0 else 1
    return dataclasses.replace(match, sizes=match.sizes | {"H": heads, "K": width // heads})


def pool(match: Match) -> str:
    """The pooling that the arrays are for."""
    if match.has("pooling"):
        return "map"
    return "cls" if match.has("cls") else "avg"


def image_size(
    opened: Opened,
    match: Match,
    given: tuple[int, int] | None,
    stated: tuple[int, int] | None = None,
) -> tuple[bool, tuple[int, int]]:
    """(whether the class token has no position, (height, width) in pixels)

    Args:
      given: by the caller, for positions that do not form a square.
      stated: in the JSON beside the arrays.
    """
    if match.is_bit:
        return False, stated or USUAL_IMAGE_SIZE
    if not match.has("positions"):
        return False, given or USUAL_IMAGE_SIZE
    rows, patch, cls = match.sizes["N"], match.patch_pixels, match.first_tokens
    patches_of = lambda size: (size[0] // patch) * (size[1] // patch)
    if stated:
        if rows in (patches_of(stated), patches_of(stated) + cls):
            return cls > 0 and rows == patches_of(stated), stated
        raise UserError(
            f"{opened.path} has {rows} positions of patches of {patch} pixels; its config.json has "
            f"no image_size, which means {stated[0]} x {stated[1]} pixels: that would be "
            f"{patches_of(stated)}."
        )
    for with_class in (cls, 0):
        side = math.isqrt(max(0, rows - with_class))
        if side > 0 and side**2 == rows - with_class:
            return cls > 0 and not with_class, (side * patch, side * patch)
    if given and rows in (patches_of(given), patches_of(given) + cls):
        return cls > 0 and rows == patches_of(given), given
    raise UserError(
        f"{opened.path} has {rows} positions of patches of {patch} pixels, which do not make a "
        "square; nothing beside it says which rectangle they are. Give it when you convert: "
        "python -m vit_jax.convert --image_size=HEIGHTxWIDTH."
    )


def _size_name(sizes: Mapping[str, int]) -> str | None:
    """The published size, such as "B", with this depth, width, MLP and, where known, heads."""
    for name, fields in SIZES.items():
        if all(sizes.get(_LETTERS[f], 0) in (0, value) for f, value in fields.items()):
            return name
    return None


def _bit(match: Match) -> tuple[str, dict[str, Any]]:
    """(such as "R50x1", fields)"""
    shape = match.resnet
    assert shape
    name = f"R{name_of_units(shape.units)}x{max(1, shape.root_width // ROOT_WIDTH)}"
    return name, {"units": shape.units, "root_width": shape.root_width}


def _vit(match: Match) -> tuple[str, dict[str, Any]]:
    """(such as "ViT-B/16", "ViT-12x512/16" or "R50+ViT-B/16", fields)"""
    sizes, shape = match.sizes, match.resnet
    size = _size_name(sizes) or f"{sizes['L']}x{sizes['D']}"
    fields: dict[str, Any] = {
        **vit_sizes(match),
        "pool": pool(match),
        "pre_logits": match.has("pre_logits"),
        "qkv_bias": "all" if match.has("qkv_bias") else "none",
        **({"distillation_token": True} if match.has("distillation_token") else {}),
    }
    if shape is None:
        return f"ViT-{size}/{sizes['P']}", fields
    patch = match.patch_pixels
    fields |= {"patch_size": patch, "units": shape.units, "root_width": shape.root_width}
    return _hybrid_name(shape.units, size, patch), fields


def _hybrid_name(units: tuple[int, ...], size: str, patch: int) -> str:
    """The name that implies these fields, or similar ones for a root with other patches."""
    vit_name = f"ViT-{size}"
    resnets = [f"R{layers}" for layers in DEPTHS]
    names = [f"R+{vit_name}/16", *(f"{r}+{vit_name}/{p}" for r in resnets for p in (16, 32))]
    for name in names:
        spec = models.spec(name)
        if (spec.units, spec.patch_size) == (units, patch):
            return name
    return f"R{name_of_units(units)}+{vit_name}/{patch}" if units else names[0]
