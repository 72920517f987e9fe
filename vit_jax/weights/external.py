"""A model out of another project's file: which layout it is, and what model it makes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import SIZES
from vit_jax.weights import architecture
from vit_jax.weights.architecture import contradictions
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import (
    config_consistency,
    google_npz,
    huggingface,
    huggingface_bit,
    json_fields,
    timm,
    timm_resnets,
)
from vit_jax.weights.layout import Layout, Match, match

MAX_PROBLEMS_SHOWN = 40
# Of files that do not say it: of ResNets, and of ViTs without positions, which take any.
USUAL_IMAGE_SIZE = (224, 224)
# Of Hugging Face, by the model_type of its config.json.
HUGGING_FACE = {
    "vit": huggingface.VITS,
    "ijepa": huggingface.IJEPAS,
    "bit": (huggingface_bit.LAYOUT,),
}
# The last three by dinov2.py and dinov3.py.
READABLE = (*HUGGING_FACE, "dinov2", "dinov2_with_registers", "dinov3_vit")
TIMM = (timm.LAYOUT, *timm_resnets.LAYOUTS)
HEAD_SIZE = 64  # of most ViTs; for files that tell neither their heads nor a published size


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """What a file holds, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from what it says.
      match: gives the parameters.
      pads_class_position: whether its class token has no position, which is one of zeros.
    """

    name: str
    spec: Any
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
        if "positions/embedding" not in found:
            return found
        rows, width = found["positions/embedding"]
        return found | {"positions/embedding": (rows + self.pads_class_position, width)}


def understand(opened: Opened, image_size: tuple[int, int] | None = None) -> ExternalWeights:
    """The model in a file.

    Args:
      opened: the file.
      image_size: in pixels, where nothing in the file says of which rectangle its positions are.

    Raises:
      UserError: no known layout, with the first difference of each; or one that does not fit, with
        all differences; or a model that cannot be computed here.
    """
    found = _the_match(opened)
    config = opened.config
    config_consistency.check(opened, _stated_sizes(opened, found))
    pads, image_size = _image_size(opened, found, image_size)
    if found.layout in huggingface.LAYOUTS:
        huggingface.check_qkv_bias(config, there=found.has("qkv_bias"))
        fields = huggingface.fields(config)
        names = huggingface.class_names(config, found.sizes.get("C", 0))
        prepared = huggingface.preprocess(opened.preprocessor or {}, image_size)
    elif found.layout is huggingface_bit.LAYOUT:
        fields = huggingface_bit.fields(config)
        names = huggingface.class_names(config, found.sizes.get("C", 0))
        prepared = huggingface_bit.preprocess(opened.preprocessor, image_size)
    elif found.layout in TIMM:
        resnets = found.layout in timm_resnets.LAYOUTS
        fields = (
            timm_resnets.fields(config, bit=architecture.is_bit(found))
            if resnets
            else timm.fields(config)
        )
        names = timm.class_names(config, found.sizes.get("C", 0))
        prepared = timm.preprocess(config or {}, image_size)
    else:
        fields, names = {}, None
        prepared = models.Preprocess(image_size, image_size)
    fields |= found.layout.computes
    if architecture.is_bit(found):
        name, of_arrays = architecture.bit(found)
    else:
        name, of_arrays = architecture.vit(found, architecture.size_name(found))
        of_arrays |= {"pool": _pool(found), "pre_logits": found.has("pre_logits")}
        of_arrays["qkv_bias"] = "all" if found.has("qkv_bias") else "none"
        if found.layout in TIMM:
            timm.check_pool(config, of_arrays["pool"])
    if found.has("scale1"):
        arguments = json_fields.section(config, "model_args")
        fields["layer_scale"] = json_fields.positive(arguments, "init_values", 1e-5)
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **fields, **of_arrays),
        num_classes=found.sizes.get("C", 0),
        class_names=names,
        preprocess=prepared,
        match=found,
        pads_class_position=pads,
    )


def _the_match(opened: Opened) -> Match:
    layouts = _candidates(opened)
    tried = [_match(layout, opened) for layout in layouts]
    for found in tried:
        if not found.misfits and not contradictions(found):
            return found
    # The nearest one, if most of the file's names are its own.
    nearest = min(tried, key=lambda m: m.misfits)
    known = len(nearest.tensors) - sum(" is unexpected" in p for p in nearest.problems)
    if len(tried) == 1 or 2 * known > len(nearest.tensors):
        lines = list(nearest.problems or contradictions(nearest))
        if len(lines) > MAX_PROBLEMS_SHOWN:
            rest = len(lines) - MAX_PROBLEMS_SHOWN
            lines = [*lines[:MAX_PROBLEMS_SHOWN], f"... and {rest} more"]
        raise UserError(
            f"{opened.path} looks like {nearest.layout.title}, but is not the same:\n  "
            + "\n  ".join(lines)
        )
    firsts = [f"{m.layout.title}: {(m.problems or contradictions(m))[0]}" for m in tried]
    raise UserError(
        f"{opened.path} has none of the layouts that are known here; tried, and the first "
        "difference of each:\n  " + "\n  ".join(firsts)
    )


def _candidates(opened: Opened) -> tuple[Layout, ...]:
    if opened.kind == "npz":
        return google_npz.LAYOUTS
    config = opened.config or {}
    if "model_type" in config:
        kind = config["model_type"]
        if not isinstance(kind, str) or kind not in HUGGING_FACE:
            raise UserError(
                f"{opened.path} holds a model of the type {kind!r}; of Hugging Face's models "
                f"{', '.join(map(repr, READABLE))} can be read."
            )
        if kind == "bit":
            huggingface_bit.fields(config)  # of another kind the arrays differ in ways that mislead
        return HUGGING_FACE[kind]
    if "architecture" in config:
        timm.check_architecture(config)
        return TIMM
    return (*huggingface.LAYOUTS, huggingface_bit.LAYOUT, *TIMM)


def _match(layout: Layout, opened: Opened) -> Match:
    """The number of heads is no array's size in some layouts; then it is said beside them."""
    first = match(layout, opened.tensors, {})
    if layout in google_npz.LAYOUTS or architecture.is_bit(first) or not first.sizes["D"]:
        return first
    config = opened.config or {}
    num_heads = config.get(
        "num_attention_heads", json_fields.section(config, "model_args").get("num_heads")
    )
    size, width = architecture.size_name(first), first.sizes["D"]
    if num_heads is None:
        usual = SIZES[size]["num_heads"] if size else max(1, width // HEAD_SIZE)
        num_heads = timm.num_heads(config) or usual
    elif type(num_heads) is not int or num_heads < 1:
        raise UserError(f"{opened.path}: its config.json says {num_heads!r} heads.")
    elif width % num_heads:
        num_heads = 1  # only to see whether the rest fits: stated.check refuses it
    return match(layout, opened.tensors, {"H": num_heads})


def _stated_sizes(opened: Opened, found: Match) -> Iterator[config_consistency.Size]:
    if found.layout in huggingface.LAYOUTS:
        return config_consistency.of_vit(found)
    if found.layout is huggingface_bit.LAYOUT:
        return config_consistency.of_bit(found)
    if found.layout in TIMM:
        return config_consistency.of_timm(found, opened.config)
    return iter(())  # Google's files have no config.json


def _pool(found: Match) -> str:
    if found.has("pooling"):
        return "map"
    return "cls" if found.has("cls") else "avg"


def _image_size(
    opened: Opened, found: Match, given: tuple[int, int] | None
) -> tuple[bool, tuple[int, int]]:
    """(whether the class token has no position, (height, width) in pixels)"""
    size = _said_image_size(opened, found.layout)
    if architecture.is_bit(found):
        return False, size or USUAL_IMAGE_SIZE
    if not found.has("positions"):
        return False, given or USUAL_IMAGE_SIZE
    rows, patch, cls = found.sizes["N"], architecture.patch_pixels(found), found.has("cls")
    if size:
        patches = (size[0] // patch) * (size[1] // patch)
        if rows in (patches, patches + cls):
            return bool(cls) and rows == patches, size
        raise UserError(
            f"{opened.path} has {rows} positions of patches of {patch} pixels; its config.json "
            f"says no image_size, and so {size[0]} x {size[1]} pixels: that would be {patches}."
        )
    for with_class in (cls, False):
        side = math.isqrt(max(0, rows - with_class))
        if side > 0 and side**2 == rows - with_class:
            return bool(cls) and not with_class, (side * patch, side * patch)
    patches = (given[0] // patch) * (given[1] // patch) if given else 0
    if given and rows in (patches, patches + cls):
        return bool(cls) and rows == patches, given
    raise UserError(
        f"{opened.path} has {rows} positions of patches of {patch} pixels, which are no square; "
        "nothing beside it says which rectangle they are. Give it when it is converted: "
        "python -m vit_jax.convert --image_size=HEIGHTxWIDTH."
    )


def _said_image_size(opened: Opened, layout: Layout) -> tuple[int, int] | None:
    config: dict[str, Any] = opened.config or {}
    if layout in huggingface.LAYOUTS:
        return json_fields.sides("image_size", config.get("image_size", 224)) if config else None
    if layout in TIMM:
        arguments, about = (
            json_fields.section(config, key) for key in ("model_args", "pretrained_cfg")
        )
        if arguments.get("img_size"):
            return json_fields.sides("img_size", arguments["img_size"])
        size = about.get("input_size")  # of channels, too
        if size:
            return json_fields.sides("input_size", size[1:] if isinstance(size, list) else size)
    return None
