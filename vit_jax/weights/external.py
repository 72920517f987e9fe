"""Models in other projects' files: what a file and the JSON beside it state, and what a format is.

UserError for any entry of config.json of a wrong type.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.core.class_names import placeholder
from vit_jax.core.errors import UserError, nearest
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, name_of_units
from vit_jax.models.vit import SIZES
from vit_jax.weights.files import Tensors, listed
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match
from vit_jax.weights.tables import Layout

MAX_SIDE = 32_768  # pixels
RGB = 3
_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
Document = Mapping[str, Any]
ClassNames = tuple[str, ...] | None
Documents = dict[str, dict[str, Any]]
# Default for files that do not state it: ResNets, and ViTs without positions, which take any size.
USUAL_IMAGE_SIZE = (224, 224)
# Widths of ViTs whose heads have 64 channels in all published models but a few; wider ones differ.
USUAL_HEAD_SIZE, USUAL_WIDTHS = 64, range(64, 1025)
# Letters of sizes, by field of a ViT.
_LETTERS = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """The contents of a file, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from the fields that it implies.
      num_classes: 0 for a model without a head.
      match: gives the parameters.
      assumed: the fields of the model, "image_size" and "preprocess" that nothing states.
      positions_for: (height, width) of the images that learned positions are for, where
        `preprocess` gives images of another size.
      position_resize: how the format's own model resizes them.
      notes: sentences on where in the file the model is, and what of it is left out.
    """

    name: str
    spec: Any
    num_classes: int
    class_names: ClassNames
    preprocess: models.Preprocess
    match: Match
    assumed: tuple[str, ...] = ()
    positions_for: tuple[int, int] | None = None
    position_resize: str = "bilinear"
    notes: tuple[str, ...] = ()

    def notices(self) -> tuple[str, ...]:
        """`notes`, and a sentence about what is assumed."""
        return tuple(filter(None, (*self.notes, self.assumptions())))

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
      packed: arrays to write, as the format's files have them.
      prepares: how its readers prepare images of a model that is written, by its own preparation.
      states: the fields that have a place in it, whatever `core.schema.fields` says of its project.
    """

    destination: str
    reads: Callable[[Opened], ExternalWeights]
    holds: Callable[[Any, int], bool]
    layout_for: Callable[[Any], Layout]
    documents: Callable[[Any, int, ClassNames, models.Preprocess], Documents]
    model_types: tuple[str, ...] = ()
    needs_type: bool = False
    packed: Callable[[Tensors, Any, int], Tensors] = lambda tensors, *_: tensors
    prepares: Callable[[models.Preprocess], models.Preprocess] = lambda about: about
    states: tuple[str, ...] = ()

    def recognises(self, opened: Opened) -> bool:
        """Whether a file may be one, by its kind and its config.json."""
        config = opened.entries
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
    name: str | None = None,
    assumed: tuple[str, ...] = (),
    **others: Any,
) -> ExternalWeights:
    """Builds the model of a matched file.

    Args:
      fields: fields of the model that the arrays do not show, or do not show correctly.
      name: default: derived from the sizes.
      assumed: as in ExternalWeights; those of the match are added.
      others: further attributes of ExternalWeights.
    """
    name_by_sizes, array_fields = (_bit if match.is_bit else _vit)(match)
    name = name or name_by_sizes
    fields = {**array_fields, **match.layout.computes, **(fields or {})}
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
        assumed=tuple(x for x in there if x in ("image_size", "preprocess") or hasattr(spec, x)),
        **others,
    )


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{x:g}" for x in values)


def vit_sizes(match: Match) -> dict[str, int]:
    """The sizes of a ViT's blocks, by field."""
    return {field: match.sizes[letter] for field, letter in _LETTERS.items()}


def with_heads(opened: Opened, match: Match, default: int | None) -> Match:
    """Adds the number of heads to a match, for layouts whose arrays do not show it.

    It is what config.json says, or `default`, which its architecture implies; without these what
    the caller gives. Else it is assumed: that of the published ViT with these sizes, or 64 channels
    a head where that is usual.

    UserError if config.json says another thing than a number; if nothing decides; or for heads that
    do not divide the width.
    """
    config, width = opened.entries, match.sizes["D"]
    heads = config.get("num_attention_heads", section(config, "model_args").get("num_heads"))
    if heads is not None and (type(heads) is not int or heads < 1):
        raise UserError(f"{opened.path}: its config.json says {heads!r} heads.")
    size = _size_name({**match.sizes, "H": 0})
    assumed: tuple[str, ...] = ()
    heads = heads or default or opened.caller_num_heads
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
    stated: tuple[int, int] | None = None,
    *,
    class_position: bool | None = True,
) -> tuple[Match, tuple[int, int]]:
    """Returns the match with the positions that it has, and (height, width) in pixels.

    The size is `stated`, in the JSON beside the arrays; without it the caller's, if the positions
    are of that many patches; or else that of a square, which is then assumed.

    Args:
      class_position: whether the positions have rows of class and distillation token, and of
        registers; None: the format allows both.

    UserError if nothing decides, or the positions are not of the size that is stated.
    """
    assumed = dataclasses.replace(match, assumed=(*match.assumed, "image_size"))
    size = opened.caller_image_size
    if not match.has("positions"):  # of a ResNet, or fixed: any size will do
        return (match if stated else assumed), stated or size or USUAL_IMAGE_SIZE
    rows, patch, first = match.sizes["N"], match.patch_pixels, match.tokens_before_patches
    # Rows before those of patches: of all tokens there, or of none.
    ways: dict[int, dict[str, Any]] = {
        first: {"register_positions": first > match.first_tokens},
        0: {"pads_class_position": match.first_tokens > 0},
    }
    if first and class_position is not None:
        del ways[0 if class_position else first]
    patches_of = lambda size: (size[0] // patch) * (size[1] // patch)
    for its, as_stated in ((stated, match), (size, assumed)):
        for n, change in ways.items():
            if its and rows == n + patches_of(its):
                return dataclasses.replace(as_stated, **change), its
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
        return dataclasses.replace(assumed, **ways[squares[0]]), (side, side)
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


# --- entries of config.json


def section(document: Document | None, key: str) -> Document:
    """A nested JSON object; empty if absent."""
    value = (document or {}).get(key)
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(key, value, "a JSON object")
    return value


def word(document: Document, key: str, default: str, choices: Collection[str]) -> str:
    """An entry that is one of `choices`."""
    value = document.get(key) or default
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"config.json: {key}={_short(value)}. {nearest(str(value), choices)}")
    return value


def flag(document: Document, key: str) -> bool:
    """An entry that is true or false; false if absent."""
    value = document.get(key)
    if not isinstance(value, bool | None):
        raise _wrong(key, value, "true or false")
    return bool(value)


def positive(document: Document, key: str, default: float) -> float:
    """A finite number above 0."""
    value = document.get(key)
    if value is None:
        return default
    if not _is_number(value) or value <= 0:
        raise _wrong(key, value, "a number above 0")
    return float(value)


def cropped_part(document: Document, default: float, image_size: Sequence[int]) -> float:
    """crop_pct, the part of a resized image's sides that the crop to `image_size` keeps."""
    part = positive(document, "crop_pct", default)
    least, most = max(image_size) / MAX_SIDE, min(image_size)
    if not least <= part <= most:
        between = f"between {least:.3g} and {most}, by which sides become 1 to {MAX_SIDE:,} pixels"
        raise _wrong("crop_pct", part, between)
    return part


def channels(document: Document, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, of RGB; standard deviations above 0."""
    value = document.get(key)
    if value is None:
        return default
    least = 0 if key.endswith("std") else -math.inf
    numbers = isinstance(value, list | tuple) and all(_is_number(x) and x > least for x in value)
    if not numbers or len(value) != 3:
        raise _wrong(key, value, "three numbers, of RGB" + (", above 0" if least == 0 else ""))
    return tuple(map(float, value))


def side(key: str, value: Any) -> int:
    """A number of pixels."""
    if type(value) is not int or not 1 <= value <= MAX_SIDE:
        raise _wrong(key, value, f"pixels, from 1 to {MAX_SIDE:,}")
    return value


def sides(key: str, value: Any) -> tuple[int, int]:
    """(height, width) of one number, a list of two, or an object with both."""
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    elif not isinstance(value, list | tuple):
        value = [value, value]
    if len(value) != 2:
        raise _wrong(key, value, "height and width in pixels")
    return side(key, value[0]), side(key, value[1])


def _wrong(key: str, value: Any, wanted: str) -> UserError:
    return UserError(f"{key}={_short(value)}; it must be {wanted}.")


def _short(value: Any) -> str:
    return repr(value)[:100]


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer that no float can be
        return False


# --- names of classes


def class_names(key: str, labels: Document, num_classes: int) -> ClassNames:
    """Names in order, with `placeholder` for classes without one; None if no class has a name.

    Args:
      key: the key of `labels` in config.json, for messages.
      labels: names by number, as JSON has them: {"0": "cat", "1": "dog"}.
      num_classes: classes of the head; 0 for a model without one, whose names are ignored.

    Raises:
      UserError: keys that are not numbers, or not classes of the head; names that are not words.
    """
    if not num_classes:
        return None
    words = [number for number in labels if not _NUMBER.fullmatch(number)]
    if words:
        raise UserError(
            f"config.json: {key} has keys that are not numbers of classes: {listed(words)}; it "
            'goes from number to name: {"0": "cat", "1": "dog"}.'
        )
    outside = sorted(int(number) for number in labels if int(number) >= num_classes)
    if outside:
        raise UserError(
            f"config.json: {key} names the classes {listed(outside)}, but the head has "
            f"{num_classes:,}, 0 to {num_classes - 1}."
        )
    named = {int(number): name for number, name in labels.items() if name not in (None, "")}
    nonsense = [f"{n}: {str(x)[:40]}" for n, x in named.items() if type(x) not in (str, int, float)]
    if nonsense:
        raise UserError(f"config.json: {key} has names that are not words: {listed(nonsense)}.")
    names = tuple(str(named.get(i, placeholder(i))) for i in range(num_classes))
    return None if len(_nameless(names)) == num_classes else names


def notice_of_nameless(names: Sequence[str]) -> str:
    """A sentence about classes that have a placeholder; "" if all have names."""
    without = _nameless(names)
    if not without:
        return ""
    called = placeholder(without[0]) + (" and so on" if len(without) > 1 else "")
    return (
        f"{len(names) - len(without):,} of {len(names):,} classes have names; without one are "
        f"{listed(without)}, called {called}."
    )


def _nameless(names: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(names) if name == placeholder(i)]


# --- sizes, which must be those of the arrays


class Fits(NamedTuple):
    """A size of the arrays that config.json states in another way."""

    by_arrays: Any  # for the message
    agrees: Callable[[Any], bool]  # whether a stated value is right


def check_sizes(opened: Opened, sizes: Mapping[str, Any], defaults: Document | None = None) -> None:
    """Raises UserError with all `sizes` in which config.json and the arrays differ.

    Args:
      sizes: the right value of each, or a Fits. Keys have dots for sections, "model_args.depth".
      defaults: what a config.json means that does not state a key.
    """
    lines = []
    for key, size in sizes.items():
        *sections, last = key.split(".")
        document: Document = opened.entries
        for name in sections:
            document = section(document, name)
        stated = document.get(last)
        said = f"{key}={_short(stated)}"
        if stated is None and opened.config is not None:
            stated = (defaults or {}).get(key)
            said = f"{key} is not stated, which means {_short(stated)}"
        if stated is not None and not _agrees(stated, size):
            by_arrays = size.by_arrays if isinstance(size, Fits) else size
            lines.append(f"{said}, the arrays have {by_arrays}")
    if lines:
        raise UserError(
            f"{opened.path}: its config.json is of another model than its arrays:\n  "
            + "\n  ".join(lines)
        )


def _agrees(stated: Any, size: Any) -> bool:
    if not isinstance(size, Fits):
        return stated is not True and stated == size
    try:
        return size.agrees(stated)
    except (TypeError, ArithmeticError):  # for a word, 0 or 1e999
        return False


def token_sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Sizes that Hugging Face's ViT, Dinov2 and DINOv3 state alike."""
    return {
        "hidden_size": sizes["D"],
        "num_hidden_layers": sizes["L"],
        **num_heads(sizes),
        "patch_size": patch("patch_size", sizes),
        "num_channels": RGB,
    }


def num_labels(match: Match) -> dict[str, Any]:
    """The number of classes, where Hugging Face states it."""
    return {"num_labels": match.sizes["C"]} if match.has("head") else {}


def num_heads(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The number of heads, by both names; most layouts' arrays only show a multiple of it."""
    width = sizes["D"]
    fits = Fits(f"a width of {width}, over which they do not divide", lambda x: not width % x)
    return dict.fromkeys(("num_attention_heads", "model_args.num_heads"), fits)


def flag_fit(has: bool) -> Fits:
    """Whether a model has a part, as any value that Python takes for true or false."""
    return Fits(has, lambda x: bool(x) == has)


def patch(key: str, sizes: Mapping[str, int]) -> Fits:
    """Height and width of patches, which are square."""
    return Fits(sizes["P"], lambda x: sides(key, x) == (sizes["P"], sizes["P"]))


def mlp_ratio(
    key: str, sizes: Mapping[str, int], width_of: Callable[[int], int] = lambda hidden: hidden
) -> Fits:
    """The MLP's width: `width_of` the ratio times the tokens' width, cut to an integer."""
    width, hidden = sizes["D"], sizes["M"]
    return Fits(
        f"an MLP of {hidden} behind tokens of {width}",
        lambda x: width_of(int(width * positive({key: x}, key, x))) == hidden,
    )


def images(key: str, match: Match, given: tuple[int, int] | None) -> Fits:
    """Sides of images: one number, (height, width), or three with the channels first.

    Any are right beside those that the caller gave, (height, width), if the positions are theirs.
    """
    rows, patch = match.sizes["N"], match.patch_pixels

    def fits(size: tuple[int, int]) -> bool:
        patches = (size[0] // patch) * (size[1] // patch)
        return rows in (patches, patches + match.tokens_before_patches)

    return Fits(
        f"{rows} positions of patches of {patch} pixels",
        lambda x: fits(sides(key, without_channels(x))) or bool(given and fits(given)),
    )


def without_channels(size: Any) -> Any:
    """[3, height, width] as [height, width], and anything else unchanged."""
    return size[1:] if isinstance(size, list) and len(size) == 3 else size
