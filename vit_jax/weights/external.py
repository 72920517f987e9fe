"""Models in other projects' files: what a file holds, and how each format is read and written."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, name_of_units
from vit_jax.models.vit import SIZES
from vit_jax.weights.config_json import ClassNames, section
from vit_jax.weights.files import Tensors
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match
from vit_jax.weights.tables import Layout

Documents = dict[str, dict[str, Any]]
# Default for files that do not state it: ResNets, and ViTs without positions, which take any size.
USUAL_IMAGE_SIZE = (224, 224)
# Widths of ViTs whose heads have 64 channels in all published models but a few; wider ones differ.
USUAL_HEAD_SIZE, USUAL_WIDTHS = 64, range(64, 1025)
# Fields of a model, or "preprocess", that nothing states: their values are assumed, and said aloud.
BARE = ("gelu", "norm_epsilon", "preprocess")
# Letters of sizes, by field of a ViT.
_LETTERS = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}
_POSITIONS = "positions/embedding"
_DISTILLATION_POSITION = "distillation_position"  # a row of the other projects' table


class Given(NamedTuple):
    """The caller's word on what a file does not state.

    Attributes:
      image_size: (height, width) in pixels.
      num_heads: of a ViT, whose arrays show it in few formats.
    """

    image_size: tuple[int, int] | None = None
    num_heads: int | None = None


NOTHING_GIVEN = Given()


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """The contents of a file, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from the fields that it implies.
      num_classes: 0 for a model without a head.
      match: gives the parameters.
      pads_class_position: whether the class token has no position, which equals one of zeros.
      assumed: the fields of the model, "image_size" and "preprocess" that nothing states.
      left_out: arrays that the format's own model of this kind does not compute with either.
      positions_for: (height, width) of the images that learned positions are for, where
        `preprocess` gives images of another size.
      position_resize: how the format's own model resizes them.
      notes: sentences on where in the file the model is.
    """

    name: str
    spec: Any
    num_classes: int
    class_names: ClassNames
    preprocess: models.Preprocess
    match: Match
    pads_class_position: bool
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    positions_for: tuple[int, int] | None = None
    position_resize: str = "bilinear"
    notes: tuple[str, ...] = ()

    def notices(self) -> tuple[str, ...]:
        """Sentences about where in the file it is, what is assumed, and left out."""
        unused = f"a classifier does not compute with {', '.join(self.left_out)}: left out."
        return tuple(
            filter(None, (*self.notes, self.assumptions(), unused if self.left_out else ""))
        )

    def assumptions(self) -> str:
        """A sentence with the values of `assumed`; empty if there are none."""
        if not self.assumed:
            return ""
        about = self.preprocess
        height, width = about.image_size
        rows, columns = self.spec.token_layout(about.image_size).grid
        # As many positions may be those of a square, which are not resized then.
        rectangle = "" if rows == columns else f", so positions of {rows} x {columns} patches"
        words = {
            "image_size": f"images of {height} x {width} pixels{rectangle}",
            "preprocess": f"images {'resized' if about.crop is None else 'resized and cropped'} to "
            f"{height} x {width} by {about.interpolation}, with mean {_numbers(about.mean)} and "
            f"standard deviation {_numbers(about.std)}",
        }
        values = [words.get(x) or f"{x}={getattr(self.spec, x)}" for x in self.assumed]
        return f"nothing beside the arrays states it, so these are assumed: {', '.join(values)}."

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
      reads: the model in a file; MisfitError if its arrays fit none of the format's layouts.
      holds: whether it is for models of this spec and number of classes.
      layout_for: the layout that a model is written in.
      documents: the JSON files beside the arrays, by name.
      model_types: the `model_type` of config.json that it reads.
      needs_type: whether it reads no others, such as those without a config.json.
      hint: the end of the message about a model that it cannot hold.
      packed: arrays to write, as the format's files have them.
      is_plain: whether fields of `core.schema.fields` without a place elsewhere are refused.
    """

    destination: str
    reads: Callable[[Opened, Given], ExternalWeights]
    holds: Callable[[Any, int], bool]
    layout_for: Callable[[Any], Layout]
    documents: Callable[[Any, int, ClassNames, models.Preprocess], Documents]
    model_types: tuple[str, ...] = ()
    needs_type: bool = False
    hint: str = "Write --to=google_npz or checkpoint."
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
    assumed: tuple[str, ...] = (),
    **others: Any,
) -> ExternalWeights:
    """The model of a matched file.

    Args:
      fields: fields of the model that the arrays do not show, or do not show correctly.
      name: default: derived from the sizes.
      assumed: as in ExternalWeights; those of the match are added.
      others: further attributes of ExternalWeights.
    """
    name_by_sizes, of_arrays = (_bit if match.is_bit else _vit)(match)
    name = name or name_by_sizes
    fields = {**of_arrays, **match.layout.computes, **(fields or {})}
    if not match.resnet and any(side % match.patch_pixels for side in preprocess.image_size):
        fields["crop_to_patches"] = True  # as other projects do
    spec = models.spec(name, **fields)
    there = (*match.assumed, *assumed)
    return ExternalWeights(
        name=name,
        spec=spec,
        num_classes=match.sizes.get("C", 0),
        class_names=class_names,
        preprocess=preprocess,
        match=match,
        pads_class_position=pads_class_position,
        assumed=tuple(x for x in there if x in ("image_size", "preprocess") or hasattr(spec, x)),
        **others,
    )


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{x:g}" for x in values)


def vit_sizes(match: Match) -> dict[str, int]:
    """The sizes of a ViT's blocks, by field."""
    return {field: match.sizes[letter] for field, letter in _LETTERS.items()}


def with_heads(
    opened: Opened,
    match: Match,
    given: Given = NOTHING_GIVEN,
    default: int | None = None,
) -> Match:
    """The same with its num_heads, for layouts whose arrays do not show it.

    It is what config.json says, or `default`, which its architecture implies; without these what
    the caller gives. Else it is assumed: that of the published ViT with these sizes, or 64 channels
    a head where that is usual.

    UserError if config.json says another thing than a number; if nothing decides; or for heads that
    do not divide the width.
    """
    config, width = opened.config or {}, match.sizes["D"]
    heads = config.get("num_attention_heads", section(config, "model_args").get("num_heads"))
    if heads is not None and (type(heads) is not int or heads < 1):
        raise UserError(f"{opened.path}: its config.json says {heads!r} heads.")
    size = _size_name({**match.sizes, "H": 0})
    assumed: tuple[str, ...] = ()
    heads = heads or default or given.num_heads
    if heads is None and (size or (width in USUAL_WIDTHS and not width % USUAL_HEAD_SIZE)):
        heads, assumed = width // USUAL_HEAD_SIZE, ("num_heads",)
        heads = SIZES[size]["num_heads"] if size else heads
    if heads is None:
        raise UserError(
            f"{opened.path}: nothing states how many heads this ViT has, {match.sizes['L']} layers "
            f"of width {width}: give num_heads=, or --num_heads when you convert it."
        )
    if heads < 1 or width % heads:
        raise UserError(
            f"{opened.path}: a width of {width} does not divide into {heads} heads: give "
            "num_heads=, or --num_heads when you convert it."
        )
    sizes = match.sizes | {"H": heads, "K": width // heads}
    return dataclasses.replace(match, sizes=sizes, assumed=(*match.assumed, *assumed))


def pool(match: Match) -> str:
    """The pooling that the arrays are for."""
    if match.has("pooling"):
        return "map"
    return "cls" if match.has("cls") else "avg"


def with_image_size(
    opened: Opened,
    match: Match,
    given: Given,
    stated: tuple[int, int] | None = None,
    *,
    class_position: bool | None = True,
) -> tuple[Match, bool, tuple[int, int]]:
    """(the match, whether the class token has no position, (height, width) in pixels)

    The size is `stated`, in the JSON beside the arrays; without it the caller's, if the positions
    are of that many patches; or else that of a square, which is then assumed.

    Args:
      class_position: whether the positions have rows of class and distillation token; None: the
        format allows both.

    UserError if nothing decides, or the positions are not of the size that is stated.
    """
    assumed = dataclasses.replace(match, assumed=(*match.assumed, "image_size"))
    size = given.image_size
    if not match.has("positions"):  # of a ResNet, or fixed: any size will do
        return (match if stated else assumed), False, stated or size or USUAL_IMAGE_SIZE
    rows, patch, first = match.sizes["N"], match.patch_pixels, match.first_tokens
    # Rows before those of patches: whether the class token has none.
    ways = {first: False, 0: first > 0}
    if first and class_position is not None:
        del ways[0 if class_position else first]
    patches_of = lambda size: (size[0] // patch) * (size[1] // patch)
    for size, is_sure in ((stated, True), (given.image_size, False)):
        for n, pads in ways.items():
            if size and rows == n + patches_of(size):
                return (match if is_sure else assumed), pads, size
    there = f"{opened.path} has {rows} positions of patches of {patch} pixels"
    if stated:
        raise UserError(
            f"{there}; its config.json means images of {stated[0]} x {stated[1]} pixels, which "
            f"would be {patches_of(stated)}{f' and {first}' if first else ''}."
        )
    sides = {n: math.isqrt(max(0, rows - n)) for n in ways}
    squares = [n for n, side in sides.items() if side and side**2 == rows - n]
    if squares[:1] == [next(iter(ways))]:
        side = sides[squares[0]] * patch
        return assumed, ways[squares[0]], (side, side)
    could_be = "which do not make a square"
    if squares:  # without a position of the class token; with it, they would be a rectangle
        side = sides[squares[0]]
        could_be = (
            f"a square of {side} x {side} if its class token has no position, else a rectangle of "
            f"{rows - first}"
        )
    raise UserError(
        f"{there}, {could_be}; nothing beside it says which images they are for. Give their size: "
        "image_size=(HEIGHT, WIDTH), or --image_size=HEIGHTxWIDTH when you convert it."
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
