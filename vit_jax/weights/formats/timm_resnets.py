"""timm's BiT ResNets (resnetv2_*_bit) and hybrids (vit_*_r50_*, vit_*_r26_*, vit_tiny_r_*).

Both divide weights by sqrt(variance + 1e-8), and have 1e-5 in group norms: not what the released
code has in whose place they stand, so that is what a model of theirs has here. Their sizes are
fixed by the architecture's name but for those of the ViT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.weights.formats import json_fields, resnet_rules, timm
from vit_jax.weights.layout import Layout, rule

COMPUTES = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}

_UNIT = {
    **{part: part for i in (1, 2, 3) for part in (f"conv{i}", f"norm{i}")},
    "projection": "downsample.conv",
    "projection_norm": "downsample.norm",
}


def _names(under: str, root: str) -> resnet_rules.Names:
    return resnet_rules.Names(
        root={"root/conv": f"{root}conv", "root/norm": f"{root}norm"},
        unit=_UNIT,
        folder=f"{under}stages.%d.blocks.{{}}.",
        first=0,
        leaves=resnet_rules.TORCH,
        torch=True,
    )


def _hybrid(title: str, root: str) -> Layout:
    under = "patch_embed.backbone."
    resnet = resnet_rules.rules("patches/resnet", _names(under, under + root), pre_activation=False)
    patches = (
        rule("patches/projection/kernel", "patch_embed.proj.weight", "D F P p"),
        rule("patches/projection/bias", "patch_embed.proj.bias", "D"),
    )
    vit = tuple(r for r in timm.LAYOUT.rules if not r.ours.startswith("patches/"))
    return Layout(title, (*resnet, *patches, *vit), computes=COMPUTES)


HYBRID = _hybrid("timm's hybrid", "stem.")
HYBRID_OF_ROOT = _hybrid("timm's hybrid without stages", "")
BIT = Layout(
    title="timm's BiT",
    rules=(
        *resnet_rules.rules("resnet", _names("", "stem."), pre_activation=True),
        rule("norm/scale", "norm.weight", "D"),
        rule("norm/bias", "norm.bias", "D"),
        rule("head/kernel", "head.fc.weight", "C D 1 1"),
        rule("head/bias", "head.fc.bias", "C"),
    ),
    computes=COMPUTES,
)
LAYOUTS = (HYBRID, HYBRID_OF_ROOT, BIT)

# timm's architectures by (units, patch size in places of the feature map).
HYBRIDS = {
    ((), 8): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), 1): "vit_small_r26_s32_224",
    ((3, 4, 9), 1): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), 1): "vit_large_r50_s32_224",
}
HYBRID_ROOT_WIDTH = 64
BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
# Arguments of timm's models with which the same arrays make another model.
_UNREAD_OF_BIT = ("act_layer", "avg_down", "basic", "output_stride", "preact", "stem_type")
_UNREAD_OF_HYBRID = ("padding_same",)


def fields(config: Mapping[str, Any] | None, *, bit: bool) -> dict[str, Any]:
    """The model's fields that its config.json tells. UserError for what cannot be computed here."""
    config = config or {}
    arguments = json_fields.section(config, "model_args")
    unread = _UNREAD_OF_BIT if bit else _UNREAD_OF_HYBRID
    unknown = [f"{name}={arguments[name]!r}" for name in unread if name in arguments]
    pool = arguments.get("global_pool") or config.get("global_pool") or "avg"
    if bit and pool != "avg":
        unknown.append(f"global_pool={pool!r}")
    if unknown:
        raise UserError(f"config.json: {', '.join(unknown)} cannot be computed here.")
    return {} if bit else timm.fields(config)


def layout_for(spec: BiTSpec | HybridSpec) -> Layout:
    """The one that a model is written in."""
    if isinstance(spec, BiTSpec):
        return BIT
    return HYBRID if spec.units else HYBRID_OF_ROOT


def documents(
    spec: BiTSpec | HybridSpec,
    num_classes: int,
    names: tuple[str, ...] | None,
    about: models.Preprocess,
) -> dict[str, dict[str, Any]]:
    """config.json. UserError for a model that timm has not."""
    if isinstance(spec, HybridSpec):
        return _of_hybrid(spec, num_classes, names, about)
    for bit in BITS:
        if models.spec(f"R{bit}").shape == spec.shape:
            break
    else:
        raise UserError(
            f"timm has no BiT with units={spec.units} and root_width={spec.root_width}, but "
            f"{', '.join(f'R{bit}' for bit in BITS)}. Write --to=huggingface."
        )
    config: dict[str, Any] = {
        "architecture": f"resnetv2_{bit}_bit",
        "num_classes": num_classes,
        "num_features": spec.shape.channels,
        "global_pool": "avg",
        "pretrained_cfg": timm.pretrained_cfg(num_classes, about)
        | {"fixed_input_size": False, "first_conv": "stem.conv", "classifier": "head.fc"},
    }
    if names:
        config["label_names"] = list(names)
    return {"config.json": config}


def _of_hybrid(
    spec: HybridSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    architecture = HYBRIDS.get((spec.units, spec.map_patch_size))
    if architecture is None or spec.root_width != HYBRID_ROOT_WIDTH:
        raise UserError(
            f"timm has no hybrid with units={spec.units}, root_width={spec.root_width} and patches "
            f"of {spec.patch_size} pixels, but those of R+ViT-<size>/16, R26+ViT-<size>/32, "
            "R50+ViT-<size>/16 and R50+ViT-<size>/32."
        )
    (config,) = timm.documents(spec, num_classes, names, about).values()
    config["architecture"] = architecture
    config["model_args"]["patch_size"] = spec.map_patch_size
    first = "stem.conv" if spec.units else "conv"
    config["pretrained_cfg"]["first_conv"] = f"patch_embed.backbone.{first}"
    return {"config.json": config}
