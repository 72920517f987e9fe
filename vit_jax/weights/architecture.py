"""Derives a model's name and fields from the sizes of a file's arrays."""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, name_of_units
from vit_jax.models.vit import SIZES
from vit_jax.nn.resnet.resnet import ResNetShape
from vit_jax.weights import json_fields
from vit_jax.weights.external import ClassNames, ExternalWeights
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match

# Default for files that do not state it: ResNets, and ViTs without positions, which take any size.
USUAL_IMAGE_SIZE = (224, 224)
USUAL_HEAD_SIZE = 64
# Letters of sizes, by field of a ViT.
_LETTERS = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}


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
    name_by_sizes, of_arrays = _bit(match) if is_bit(match) else _vit(match)
    name = name or name_by_sizes
    all_fields = {**of_arrays, **match.layout.computes, **(fields or {})}
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **all_fields),
        num_classes=match.sizes.get("C", 0),
        class_names=class_names,
        preprocess=preprocess,
        match=match,
        pads_class_position=pads_class_position,
    )


def is_bit(match: Match) -> bool:
    """Whether the file is a ResNet without a ViT after it."""
    return match.has("resnet")


def resnet_shape(match: Match) -> ResNetShape | None:
    """The ResNet, or the one before a hybrid's blocks; None for a plain ViT."""
    if not match.sizes.get("W"):
        return None
    units: list[int] = []
    while match.has(f"stage{len(units) + 1}/first"):
        stage = len(units) + 1
        rest = match.sizes[f"U{stage}"] if match.has(f"stage{stage}/rest") else 0
        units.append(1 + rest)
    return ResNetShape(tuple(units), match.sizes["W"])


def patch_pixels(match: Match) -> int:
    """Pixels from one token of a ViT to the next."""
    shape = resnet_shape(match)
    return match.sizes["P"] * (shape.stride if shape else 1)


def size_name(match: Match) -> str | None:
    """The published size, such as "B", with this depth, width, MLP and, where known, heads."""
    for name, fields in SIZES.items():
        if all(match.sizes.get(_LETTERS[f], 0) in (0, value) for f, value in fields.items()):
            return name
    return None


def vit_sizes(match: Match) -> dict[str, int]:
    """The sizes of a ViT's blocks, by field."""
    return {field: match.sizes[letter] for field, letter in _LETTERS.items()}


def stated_heads(opened: Opened) -> int:
    """The number of heads that config.json states. UserError if it is not a number, or absent."""
    config = opened.config or {}
    arguments = json_fields.section(config, "model_args")
    stated = config.get("num_attention_heads", arguments.get("num_heads"))
    if type(stated) is not int or stated < 1:
        raise UserError(f"{opened.path}: its config.json says {stated!r} heads.")
    return stated


def heads(opened: Opened, match: Match, default: int | None = None) -> int:
    """The stated num_heads, or `default`, or that of the published size, or heads of size 64."""
    config = opened.config or {}
    arguments = json_fields.section(config, "model_args")
    if config.get("num_attention_heads", arguments.get("num_heads")) is not None:
        return stated_heads(opened)
    size = size_name(match)
    usual = SIZES[size]["num_heads"] if size else max(1, match.sizes["D"] // USUAL_HEAD_SIZE)
    return default or usual


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
    if is_bit(match):
        return False, stated or USUAL_IMAGE_SIZE
    if not match.has("positions"):
        return False, given or USUAL_IMAGE_SIZE
    rows, patch, cls = match.sizes["N"], patch_pixels(match), match.has("cls")
    if stated:
        patches = (stated[0] // patch) * (stated[1] // patch)
        if rows in (patches, patches + cls):
            return bool(cls) and rows == patches, stated
        raise UserError(
            f"{opened.path} has {rows} positions of patches of {patch} pixels; its config.json has "
            f"no image_size, which means {stated[0]} x {stated[1]} pixels: that would be {patches}."
        )
    for with_class in (cls, False):
        side = math.isqrt(max(0, rows - with_class))
        if side > 0 and side**2 == rows - with_class:
            return bool(cls) and not with_class, (side * patch, side * patch)
    patches = (given[0] // patch) * (given[1] // patch) if given else 0
    if given and rows in (patches, patches + cls):
        return bool(cls) and rows == patches, given
    raise UserError(
        f"{opened.path} has {rows} positions of patches of {patch} pixels, which do not make a "
        "square; nothing beside it says which rectangle they are. Give it when you convert: "
        "python -m vit_jax.convert --image_size=HEIGHTxWIDTH."
    )


def contradictions(match: Match) -> list[str]:
    """Combinations of arrays that no model has, although each shape is right."""
    sizes = match.sizes
    lines = []
    shape = resnet_shape(match)
    features = sizes["D"] if is_bit(match) else sizes.get("F", 0)
    if shape and features != shape.channels:
        lines.append(f"what follows its ResNet takes {features} channels, not {shape.channels}")
    if is_bit(match):
        return lines
    if sizes["P"] != sizes["p"]:
        lines.append(f"its patches are {sizes['P']} x {sizes['p']} pixels; they must be square")
    if match.has("pre_logits") and sizes["E"] != sizes["D"]:
        lines.append(f"its pre-logits are {sizes['E']} wide, its tokens {sizes['D']}")
    if match.has("cls") and match.has("pooling"):
        lines.append("it has a class token and attention pooling; a model has one of them")
    return lines


def _bit(match: Match) -> tuple[str, dict[str, Any]]:
    """(such as "R50x1", fields)"""
    shape = resnet_shape(match)
    assert shape
    name = f"R{name_of_units(shape.units)}x{max(1, shape.root_width // ROOT_WIDTH)}"
    return name, {"units": shape.units, "root_width": shape.root_width}


def _vit(match: Match) -> tuple[str, dict[str, Any]]:
    """(such as "ViT-B/16", "ViT-12x512/16" or "R50+ViT-B/16", fields)"""
    sizes, shape = match.sizes, resnet_shape(match)
    size = size_name(match) or f"{sizes['L']}x{sizes['D']}"
    fields: dict[str, Any] = {
        **vit_sizes(match),
        "pool": pool(match),
        "pre_logits": match.has("pre_logits"),
        "qkv_bias": "all" if match.has("qkv_bias") else "none",
    }
    if shape is None:
        return f"ViT-{size}/{sizes['P']}", fields
    fields |= {
        "patch_size": patch_pixels(match),
        "units": shape.units,
        "root_width": shape.root_width,
    }
    return _hybrid_name(fields, size), fields


def _hybrid_name(fields: dict[str, Any], size: str) -> str:
    """The name that implies these fields, or similar ones for a root with other patches."""
    vit_name = f"ViT-{size}"
    resnets = [f"R{layers}" for layers in DEPTHS]
    names = [f"R+{vit_name}/16", *(f"{r}+{vit_name}/{p}" for r in resnets for p in (16, 32))]
    for name in names:
        spec = models.spec(name)
        if (spec.units, spec.patch_size) == (fields["units"], fields["patch_size"]):
            return name
    units: tuple[int, ...] = fields["units"]
    return f"R{name_of_units(units)}+{vit_name}/{fields['patch_size']}" if units else names[0]
