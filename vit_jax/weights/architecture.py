"""Which model the sizes of a file's arrays make: its name and fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH
from vit_jax.models.vit import SIZES
from vit_jax.nn.resnet import ResNetShape
from vit_jax.weights.layout import Match

_LAYERS = {units: layers for layers, units in DEPTHS.items()}


def is_bit(found: Match) -> bool:
    """Whether it is a ResNet alone."""
    return found.has("resnet")


def resnet_shape(found: Match) -> ResNetShape | None:
    """Of the ResNet, or of that before the blocks; None for a plain ViT."""
    if not found.sizes.get("W"):
        return None
    units: list[int] = []
    while found.has(f"stage{len(units) + 1}/first"):
        stage = len(units) + 1
        rest = found.sizes[f"U{stage}"] if found.has(f"stage{stage}/rest") else 0
        units.append(1 + rest)
    return ResNetShape(tuple(units), found.sizes["W"])


def patch_pixels(found: Match) -> int:
    """From one token of a ViT to the next."""
    shape = resnet_shape(found)
    return found.sizes["P"] * (shape.stride if shape else 1)


def bit(found: Match) -> tuple[str, dict[str, Any]]:
    """(such as "R50x1", fields)"""
    shape = resnet_shape(found)
    assert shape
    layers, factor = _LAYERS.get(shape.units, 50), max(1, shape.root_width // ROOT_WIDTH)
    return f"R{layers}x{factor}", {"units": shape.units, "root_width": shape.root_width}


def vit(found: Match, size: str | None) -> tuple[str, dict[str, Any]]:
    """(such as "ViT-B/16" or "R50+ViT-B/16", fields); `size` of the published ones, or None."""
    sizes = found.sizes
    fields: dict[str, Any] = {
        "depth": sizes["L"],
        "width": sizes["D"],
        "mlp_dim": sizes["M"],
        "num_heads": sizes["H"],
    }
    shape, size = resnet_shape(found), size or shape_name(sizes)
    if shape is None:
        return f"ViT-{size}/{sizes['P']}", fields
    fields |= {
        "patch_size": patch_pixels(found),
        "units": shape.units,
        "root_width": shape.root_width,
    }
    return _hybrid_name(fields, size), fields


def shape_name(sizes: Mapping[str, int]) -> str:
    """ "12x512": what stands for the size of a ViT that is none of the published ones."""
    return f"{sizes['L']}x{sizes['D']}"


def _hybrid_name(fields: dict[str, Any], size: str) -> str:
    """The one that stands for these fields, or for the most similar of them."""
    vit_name = f"ViT-{size}"
    resnets = [f"R{layers}" for layers in DEPTHS]
    names = [f"R+{vit_name}/16", *(f"{r}+{vit_name}/{p}" for r in resnets for p in (16, 32))]
    for name in names:
        spec = models.spec(name)
        if (spec.units, spec.patch_size) == (fields["units"], fields["patch_size"]):
            return name
    return f"R50+{vit_name}/16"


def size_name(found: Match) -> str | None:
    """ "B", if depth, width and MLP are those of ViT-B; and the heads, where they are known."""
    letters = {"depth": "L", "width": "D", "mlp_dim": "M", "num_heads": "H"}
    for name, fields in SIZES.items():
        same = (found.sizes.get(letters[f], 0) in (0, value) for f, value in fields.items())
        if all(same):
            return name
    return None


def contradictions(found: Match) -> list[str]:
    """What arrays of the right shapes cannot be together."""
    sizes = found.sizes
    lines = []
    shape = resnet_shape(found)
    features = sizes["D"] if is_bit(found) else sizes.get("F", 0)
    if shape and features != shape.channels:
        lines.append(f"what follows its ResNet takes {features} channels, not {shape.channels}")
    if is_bit(found):
        return lines
    if sizes["P"] != sizes["p"]:
        lines.append(f"its patches are {sizes['P']} x {sizes['p']} pixels; they must be square")
    if found.has("pre_logits") and sizes["E"] != sizes["D"]:
        lines.append(f"its pre-logits are {sizes['E']} wide, its tokens {sizes['D']}")
    if found.has("cls") and found.has("pooling"):
        lines.append("it has a class token and attention pooling; a model has one of them")
    return lines
