"""A ViT out of another project's file: which layout it is, and what model it makes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import SIZES, ViTSpec
from vit_jax.weights import google_npz, huggingface, timm
from vit_jax.weights.layout import Layout, Match, match
from vit_jax.weights.opening import Opened

MAX_PROBLEMS_SHOWN = 40
HEAD_SIZE = 64  # of most ViTs; for files that tell neither their heads nor a published size


@dataclasses.dataclass(frozen=True)
class Foreign:
    """What a file holds, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from what it says.
      match: gives the parameters.
      pads_class_position: whether its class token has no position, which is one of zeros.
    """

    name: str
    spec: ViTSpec
    num_classes: int  # 0: no head
    class_names: tuple[str, ...] | None
    preprocess: models.Preprocess
    match: Match
    pads_class_position: bool

    def array(self, name: str) -> np.ndarray:
        """One of the model's parameters, float32."""
        found = self.match.ours(name)
        if name == "positions/embedding" and self.pads_class_position:
            return np.concatenate([np.zeros_like(found[:1]), found])
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters."""
        found = self.match.shapes()
        rows, width = found["positions/embedding"]
        return found | {"positions/embedding": (rows + self.pads_class_position, width)}


def understand(opened: Opened) -> Foreign:
    """The model in a file.

    Raises:
      UserError: no known layout, with the first difference of each; or one that does not fit, with
        all differences; or a model that cannot be computed here.
    """
    found = _the_match(opened)
    config = opened.config
    pads, image_size = _image_size(opened, found)
    if found.layout in huggingface.LAYOUTS:
        fields = huggingface.fields(config)
        names = huggingface.class_names(config, found.sizes.get("C", 0))
        prepared = huggingface.preprocess(opened.preprocessor or {}, image_size)
    elif found.layout is timm.LAYOUT:
        fields = timm.fields(config)
        names = timm.class_names(config, found.sizes.get("C", 0))
        prepared = timm.preprocess(config or {}, image_size)
    else:
        fields, names = dict(google_npz.FIELDS), None
        prepared = models.Preprocess(image_size, image_size)
    sizes = found.sizes
    fields |= {
        "depth": sizes["L"],
        "width": sizes["D"],
        "mlp_dim": sizes["M"],
        "heads": sizes["H"],
        "pool": _pool(found),
        "pre_logits": found.has("pre_logits"),
    }
    if found.has("scale1"):
        arguments = (config or {}).get("model_args") or {}
        fields["layer_scale"] = float(arguments.get("init_values") or 1e-5)
    name = f"ViT-{_size_name(sizes) or 'B'}/{sizes['P']}"
    return Foreign(
        name=name,
        spec=models.spec(name, **fields),
        num_classes=sizes.get("C", 0),
        class_names=names,
        preprocess=prepared,
        match=found,
        pads_class_position=pads,
    )


def _the_match(opened: Opened) -> Match:
    layouts = _candidates(opened)
    tried = [_match(layout, opened) for layout in layouts]
    for found in tried:
        if found.fits and not _contradictions(found):
            return found
    # The nearest one, if most of the file's names are its own.
    nearest = min(tried, key=lambda m: len(m.problems))
    known = len(nearest.tensors) - sum(" is unexpected" in p for p in nearest.problems)
    if len(tried) == 1 or 2 * known > len(nearest.tensors):
        lines = list(nearest.problems or _contradictions(nearest))
        if len(lines) > MAX_PROBLEMS_SHOWN:
            rest = len(lines) - MAX_PROBLEMS_SHOWN
            lines = [*lines[:MAX_PROBLEMS_SHOWN], f"... and {rest} more"]
        raise UserError(
            f"{opened.path} looks like {nearest.layout.title}, but is not the same:\n  "
            + "\n  ".join(lines)
        )
    firsts = [f"{m.layout.title}: {(m.problems or _contradictions(m))[0]}" for m in tried]
    raise UserError(
        f"{opened.path} has none of the layouts that are known here; tried, and the first "
        "difference of each:\n  " + "\n  ".join(firsts)
    )


def _candidates(opened: Opened) -> tuple[Layout, ...]:
    if opened.kind == "npz":
        return google_npz.LAYOUTS
    config = opened.config or {}
    if "model_type" in config:
        if config["model_type"] != "vit":
            raise UserError(
                f"{opened.path} holds a model of the type {config['model_type']!r}; of Hugging "
                "Face's models 'vit' can be read."
            )
        return huggingface.LAYOUTS
    if "architecture" in config:
        return (timm.LAYOUT,)
    return (*huggingface.LAYOUTS, timm.LAYOUT)


def _match(layout: Layout, opened: Opened) -> Match:
    """The number of heads is no array's size in some layouts; then it is said beside them."""
    first = match(layout, opened.tensors, {})
    if layout in google_npz.LAYOUTS or not first.sizes["D"]:
        return first
    config = opened.config or {}
    said = config.get("num_attention_heads") or (config.get("model_args") or {}).get("num_heads")
    size = _size_name(first.sizes)
    heads = said or (SIZES[size]["heads"] if size else max(1, first.sizes["D"] // HEAD_SIZE))
    if type(heads) is not int or heads < 1:
        raise UserError(f"{opened.path}: its config.json says {heads!r} heads.")
    return match(layout, opened.tensors, {"H": heads})


def _size_name(sizes: Mapping[str, int]) -> str | None:
    """ "B", if depth, width and MLP are those of ViT-B; and the heads, where they are known."""
    letters = {"depth": "L", "width": "D", "mlp_dim": "M", "heads": "H"}
    for name, fields in SIZES.items():
        same = (sizes.get(letters[f], 0) in (0, value) for f, value in fields.items())
        if all(same):
            return name
    return None


def _contradictions(found: Match) -> list[str]:
    """What arrays of the right shapes cannot be together."""
    sizes = found.sizes
    lines = []
    if sizes["P"] != sizes["p"]:
        lines.append(f"its patches are {sizes['P']} x {sizes['p']} pixels; they must be square")
    if found.has("pre_logits") and sizes["E"] != sizes["D"]:
        lines.append(f"its pre-logits are {sizes['E']} wide, its tokens {sizes['D']}")
    if found.has("cls") and found.has("pooling"):
        lines.append("it has a class token and attention pooling; a model has one of them")
    return lines


def _pool(found: Match) -> str:
    if found.has("pooling"):
        return "map"
    return "cls" if found.has("cls") else "avg"


def _image_size(opened: Opened, found: Match) -> tuple[bool, tuple[int, int]]:
    """(whether the class token has no position, (height, width) in pixels)"""
    rows, patch, cls = found.sizes["N"], found.sizes["P"], found.has("cls")
    said = _said_image_size(opened, found.layout)
    if said:
        patches = (said[0] // patch) * (said[1] // patch)
        if rows in (patches, patches + cls):
            return bool(cls) and rows == patches, said
        raise UserError(
            f"{opened.path} has {rows} positions, but config.json says images of {said[0]} x "
            f"{said[1]} pixels, which have {patches} patches of {patch} pixels."
        )
    for with_class in (cls, False):
        side = math.isqrt(max(0, rows - with_class))
        if side > 0 and side**2 == rows - with_class:
            return bool(cls) and not with_class, (side * patch, side * patch)
    raise UserError(
        f"{opened.path} has {rows} positions, which are no square of patches; nothing beside it "
        "says which rectangle they are (config.json would)."
    )


def _said_image_size(opened: Opened, layout: Layout) -> tuple[int, int] | None:
    config: dict[str, Any] = opened.config or {}
    if layout in huggingface.LAYOUTS:
        said = config.get("image_size", 224) if config else None
    elif layout is timm.LAYOUT:
        said = (config.get("model_args") or {}).get("img_size")
        said = said or (config.get("pretrained_cfg") or {}).get("input_size", [0])[1:]
    else:
        said = None
    if not said:
        return None
    sides = [said, said] if isinstance(said, int) else said
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(s) is int for s in sides):
        raise UserError(f"{opened.path}: its config.json says the image size {said!r}.")
    return sides[0], sides[1]
