"""Models in other projects' files: the fields that arrays and JSON state, and the class `Format`.

Every entry of config.json is checked: one of a wrong type is a UserError.
"""

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from vit_jax import models
from vit_jax.core.class_names import placeholder
from vit_jax.core.errors import UserError
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, name_of_units
from vit_jax.models.layers.relative import num_offsets
from vit_jax.models.vit import SIZES
from vit_jax.weights.files import Tensors, listed
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match
from vit_jax.weights.tables import BLOCK, Layout

MAX_SIDE = 32_768  # pixels
RGB = 3
_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
Document = Mapping[str, Any]
ClassNames = tuple[str, ...] | None
Documents = dict[str, dict[str, Any]]
# For files that do not state it: ResNets, and ViTs without positions, take images of any size.
USUAL_IMAGE_SIZE = (224, 224)
# Nearly all published ViTs of these widths have 64 channels a head; wider ones differ.
USUAL_HEAD_SIZE, USUAL_WIDTHS = 64, range(64, 1025, 64)
_NORMS = {"norm": "tokens", "feature_norm": "features"}  # part -> field final_norm
# Field of a ViT -> letter of its size in tables.
_LETTERS = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """The model in another project's file, as a name and a spec of ours.

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
        about, numbers = self.preprocess, "{:g} {:g} {:g}".format
        height, width = about.image_size
        rows, columns = self.spec.token_layout(about.image_size).grid
        # As many positions may be those of a square, which are not resized then.
        rectangle = "" if rows == columns else f", so positions of {rows} x {columns} patches"
        words = {
            "image_size": f"images of {height} x {width} pixels{rectangle}",
            "preprocess": f"images {'resized' if about.crop is None else 'resized and cropped'} to "
            f"{height} x {width} by {about.interpolation}, with mean {numbers(*about.mean)} and "
            f"standard deviation {numbers(*about.std)}",
        }
        values = [words.get(x) or f"{x}={getattr(self.spec, x)}" for x in self.assumed]
        return f"nothing beside the arrays states it, so these are assumed: {', '.join(values)}."


class ModelToWrite(NamedTuple):
    """A model, but for its arrays; `num_classes` is 0 without a head."""

    spec: Any
    num_classes: int
    class_names: ClassNames
    preprocess: models.Preprocess


@dataclasses.dataclass(frozen=True)
class Format:
    """How models of one kind are read from, and written to, one project's files.

    Attributes:
      destination: its name in `convert --to`; several kinds of model may share it.
      reads: the model in a file; MisfitError if its arrays fit none of the format's layouts.
      holds: whether it is for models of this spec and number of classes.
      layout_for: the layout that a model is written in.
      documents: the JSON files beside the arrays, by name.
      model_types: the `model_type` of config.json that it reads.
      needs_type: whether it reads no others, such as those without a config.json.
      packed: arrays to write, as the format's files have them; None: as they are.
      prepares: how its readers prepare images of a model that is written; None: likewise.
      states: the fields that have a place in it, whatever `core.schema.fields` says of its project.
    """

    destination: str
    reads: Callable[[Opened], ExternalWeights]
    holds: Callable[[Any, int], bool]
    layout_for: Callable[[Any], Layout]
    documents: Callable[[ModelToWrite], Documents]
    model_types: tuple[str, ...] = ()
    needs_type: bool = False
    packed: Callable[[Tensors, ModelToWrite], Tensors] | None = None
    prepares: Callable[[models.Preprocess], models.Preprocess] | None = None
    states: tuple[str, ...] = ()

    def recognises(self, opened: Opened) -> bool:
        """Returns whether a file may be one, by its kind and its config.json."""
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
    """Builds the model of a matched file; `fields`: those that the arrays do not show correctly."""
    name_by_sizes, array_fields = (_bit if match.is_bit else _vit)(match)
    name = name or name_by_sizes
    fields = {**array_fields, **match.layout.computes, **(fields or {})}
    if not match.resnet and any(side % match.patch_pixels for side in preprocess.image_size):
        fields["crop_to_patches"] = True  # as other projects do
    spec = models.spec(name, **fields)
    return ExternalWeights(
        name=name,
        spec=spec,
        num_classes=match.sizes.get("C", 0),
        class_names=class_names,
        preprocess=preprocess,
        match=match,
        assumed=tuple(
            x
            for x in (*match.assumed, *assumed)
            if x in ("image_size", "preprocess") or hasattr(spec, x)
        ),
        **others,
    )


def vit_sizes(match: Match) -> dict[str, int]:
    """The sizes of a ViT's blocks, by field."""
    return {field: match.sizes[letter] for field, letter in _LETTERS.items()}


def with_heads(
    opened: Opened, match: Match, default: int | None, *, pool_heads: int | None = None
) -> Match:
    """Adds the number of heads to a match, for layouts whose arrays do not show it.

    It is what config.json says, or `default`, or what the caller gives. Else it is assumed: that of
    the published ViT with these sizes, or 64 channels a head where that is usual.
    """
    config, width = opened.entries, match.sizes["D"]
    heads = config.get("num_attention_heads", section(config, "model_args").get("num_heads"))
    size = _size_name({**match.sizes, "H": 0})
    assumed: tuple[str, ...] = ()
    file = "its arrays" if heads is None else "config.json"
    if heads is None:
        heads = default or opened.caller_num_heads
    if heads is None and (size or width in USUAL_WIDTHS):
        heads, assumed = width // USUAL_HEAD_SIZE, ("num_heads",)
        heads = SIZES[size]["num_heads"] if size else heads
    if type(heads) is not int or heads < 1 or width % heads:
        why = "is not stated or no divisor: give num_heads=, or --num_heads"
        refuse({"num_heads": heads}, why, file)
    of_pool = pool_heads or heads
    if type(of_pool) is not int or of_pool < 1 or width % of_pool:
        refuse({"attn_pool_num_heads": of_pool}, f"does not divide {width} channels")
    sizes = match.sizes | {"H": heads, "K": width // heads, "h": of_pool, "k": width // of_pool}
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
    are of that many patches; or else that of a square, which is then assumed. `class_position`:
    whether the tokens before the patches have rows; None: the format allows both.
    """
    assumed = dataclasses.replace(match, assumed=(*match.assumed, "image_size"))
    size = opened.caller_image_size
    if "N" not in match.sizes:  # of a ResNet, or fixed: any size will do
        return (match if stated else assumed), stated or size or USUAL_IMAGE_SIZE
    rows, patch, first = match.sizes["N"], match.patch_pixels, match.tokens_before_patches
    # Rows before those of patches: of all tokens there, or of none.
    ways: dict[int, dict[str, Any]] = {
        first: {"register_positions": first > match.first_tokens},
        0: {"pads_class_position": match.first_tokens > 0},
    }
    if first and class_position is not None:
        del ways[0 if class_position else first]
    for its, as_stated in ((stated, match), (size, assumed)):
        for n, change in ways.items():
            if its and rows == n + (its[0] // patch) * (its[1] // patch):
                return dataclasses.replace(as_stated, **change), its
    n, change = next(iter(ways.items()))  # a square without more rows may be a rectangle with them
    side = math.isqrt(max(0, rows - n))
    if side and side**2 == rows - n and not stated:
        return dataclasses.replace(assumed, **change), (side * patch, side * patch)
    there = f"It has {rows} positions of patches of {patch} pixels"
    if its := stated or size:
        would_be = " or ".join(str(its[0] // patch * (its[1] // patch) + n) for n in ways)
        says = f"{'its config.json' if stated else 'image_size'} means {its[0]} x {its[1]} pixels"
        raise UserError(f"{there}; {says}, which would be {would_be}.")
    raise UserError(f"{there}, perhaps of no square: give image_size=, --image_size=HEIGHTxWIDTH.")


def check_offsets(match: Match, size: tuple[int, int]) -> None:
    """Raises UserError if BEiT's offsets are for images of another size."""
    if (number := match.sizes.get("O")) is None:
        return
    wanted = num_offsets((size[0] // match.patch_pixels, size[1] // match.patch_pixels)) + 3
    if number != wanted:
        file = "its arrays" if "image_size" in match.assumed else "config.json"
        refuse({"image_size": size}, f"means {wanted} offsets, of which there are {number}", file)


def _size_name(sizes: Mapping[str, int]) -> str | None:
    for name, fields in SIZES.items():
        if all(sizes.get(_LETTERS[f], 0) in (0, value) for f, value in fields.items()):
            return name
    return None


def _bit(match: Match) -> tuple[str, dict[str, Any]]:
    shape = match.resnet
    assert shape
    name = f"R{name_of_units(shape.units)}x{max(1, shape.root_width // ROOT_WIDTH)}"
    return name, {"units": shape.units, "root_width": shape.root_width}


def _vit(match: Match) -> tuple[str, dict[str, Any]]:
    sizes, shape = match.sizes, match.resnet
    names = {rule.ours.removeprefix(BLOCK) for rule in match.rules}
    size = _size_name(sizes) or f"{sizes['L']}x{sizes['D']}"
    fields: dict[str, Any] = {
        **vit_sizes(match),
        "pool": pool(match),
        "pre_logits": match.has("pre_logits"),
        "projection": sizes.get("T", 0),
        "qkv_bias": "all" if match.has("qkv_bias") else "none",
        "dense_bias": match.has("dense_bias"),
        **({"position_hidden": match.sizes["Q"]} if "Q" in match.sizes else {}),
        "class_token": match.has("cls") and pool(match) != "cls",
        **{part: match.has(part) for part in ("patch_bias", "patch_norm", "pre_norm")},
        "final_norm": next((x for part, x in _NORMS.items() if match.has(part)), "none"),
        **{
            part: True
            for part in ("distillation_token", "attention_norm", "mlp_norm")
            if match.has(part)
        },
        **({"norm": "rms"} if "norm1/scale" in names and "norm1/bias" not in names else {}),
    }
    for field, its, usual in (("pool_heads", "h", "H"), ("pool_mlp_dim", "m", "M")):
        differs = match.has("pooling") and sizes[its] != sizes[usual]
        fields |= {field: sizes[its]} if differs else {}
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


def refuse(
    entries: Document, why: str = "cannot be computed here", file: str = "config.json"
) -> NoReturn:
    """Raises a UserError about entries of the JSON beside the arrays."""
    stated = ", ".join(f"{key}={_short(value)}" for key, value in entries.items())
    raise UserError(f"{why}.", field=f"{file}: {stated}")


def lacks(title: str, fields: Document, cure: str = "") -> NoReturn:
    """Raises a UserError about fields that no model of a format has."""
    stated = ", ".join(f"{name}={value}" for name, value in fields.items())
    raise UserError(f"has no model with {stated}.", field=title, cure=cure)


def _entry(document: Document, key: str, default: Any, is_valid: Callable, wanted: str) -> Any:
    """An entry, or `default` where it is absent or null."""
    value = document.get(key)
    value = default if value is None else value
    if not is_valid(value):
        raise UserError(f"must be {wanted}.", field=key, value=_short(value))
    return value


def section(document: Document, key: str) -> Document:
    """A nested JSON object; empty if absent."""
    return _entry(document, key, {}, lambda x: isinstance(x or {}, Mapping), "a JSON object") or {}


def word(document: Document, key: str, default: str, choices: Collection[str]) -> str:
    """An entry that is one of `choices`; `default` for an empty one too."""
    is_valid = lambda x: isinstance(x, str) and x in choices
    stated = {key: document.get(key) or default}
    return _entry(stated, key, default, is_valid, f"one of {', '.join(choices)}")


def flag(document: Document, key: str) -> bool:
    """An entry that is true or false; false if absent."""
    return _entry(document, key, False, lambda x: isinstance(x, bool), "true or false")


def positive(document: Document, key: str, default: float) -> float:
    """A finite number above 0."""
    is_valid = lambda x: _is_number(x) and x > 0
    return float(_entry(document, key, default, is_valid, "a number above 0"))


def whole(document: Document, key: str, default: int) -> int:
    """A whole number above 0."""
    is_valid = lambda x: type(x) is int and x > 0
    return _entry(document, key, default, is_valid, "a whole number above 0")


def cropped_part(document: Document, default: float, image_size: Sequence[int]) -> float:
    """crop_pct, the part of a resized image's sides that the crop to `image_size` keeps."""
    least, most = max(image_size) / MAX_SIDE, min(image_size)
    is_valid = lambda x: _is_number(x) and least <= x <= most
    between = f"between {least:.3g} and {most}, by which sides become 1 to {MAX_SIDE:,} pixels"
    return float(_entry(document, "crop_pct", default, is_valid, between))


def channels(document: Document, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, of RGB; standard deviations above 0."""

    def is_valid(value: Any) -> bool:
        three = isinstance(value, list | tuple) and len(value) == RGB
        least = 0 if key.endswith("std") else -math.inf
        return three and all(_is_number(x) and x > least for x in value)

    rule = "three numbers, of RGB, and standard deviations above 0"
    return tuple(map(float, _entry(document, key, default, is_valid, rule)))


def side(key: str, value: Any) -> int:
    """A number of pixels."""
    is_valid = lambda x: type(x) is int and 1 <= x <= MAX_SIDE
    return _entry({key: value}, key, None, is_valid, f"pixels, from 1 to {MAX_SIDE:,}")


def sides(key: str, value: Any) -> tuple[int, int]:
    """(height, width) of one number, a list of two, or an object with both."""
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    height, width = value if isinstance(value, list | tuple) and len(value) == 2 else (value, value)
    return side(key, height), side(key, width)


def _short(value: Any) -> str:
    return repr(value)[:100]


def _is_number(value: Any) -> bool:
    """Returns whether it is a number that a float can be, neither NaN nor infinite."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


# --- names of classes


def class_names(key: str, labels: Document, num_classes: int) -> ClassNames:
    """Names in order, with `placeholder` for classes without one; None if no class has a name."""
    if not num_classes:
        return None
    odd = [
        f"{number!r}: {str(name)[:40]}"
        for number, name in labels.items()
        if not (_NUMBER.fullmatch(number) and int(number) < num_classes)
        or (name is not None and type(name) not in (str, int, float))
    ]
    if odd:
        refuse({key: listed(odd)}, f"is not of {num_classes} classes")
    named = {int(number): name for number, name in labels.items() if name not in (None, "")}
    names = tuple(str(named.get(i, placeholder(i))) for i in range(num_classes))
    return names if any(name != placeholder(i) for i, name in enumerate(names)) else None


def check_sizes(opened: Opened, sizes: Document) -> None:
    """Raises UserError if config.json states other sizes than the arrays have; keys may be absent.

    sizes: the size of the arrays by key, with dots for sections: "model_args.depth".
    """
    entries: Document = opened.entries
    for key, size in sizes.items():
        *sections, last = key.split(".")
        stated = functools.reduce(section, sections, entries).get(last)
        # Patches may be stated as [height, width].
        if stated not in (None, size, [size, size]):
            refuse({key: stated}, f"is of another model: the arrays have {size}")
