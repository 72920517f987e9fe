"""timm's vit_* models.

Their GELU is exact, but for those of TANH, and their layer norms have 1e-6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import label_names
from vit_jax.weights.formats import json_fields
from vit_jax.weights.layout import Layout, Rule, rule


def _linear(ours: str, theirs: str, weight: str, bias: str) -> tuple[Rule, ...]:
    return (
        rule(f"{ours}/kernel", f"{theirs}.weight", weight),
        rule(f"{ours}/bias", f"{theirs}.bias", bias),
    )


def _norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    return (
        rule(f"{ours}/scale", f"{theirs}.weight", "D"),
        rule(f"{ours}/bias", f"{theirs}.bias", "D"),
    )


LAYOUT = Layout(
    title="timm's ViT",
    rules=(
        *_linear("patches", "patch_embed.proj", "D 3 P p", "D"),
        rule("cls", "cls_token", "1 1 D"),
        rule("positions/embedding", "pos_embed", "1 N D"),
        *_norm("norm1", "blocks.{}.norm1"),
        *_linear("attention/qkv", "blocks.{}.attn.qkv", "(3 H K) D", "(3 H K)"),
        *_linear("attention/out", "blocks.{}.attn.proj", "D (H K)", "D"),
        rule("scale1/scale", "blocks.{}.ls1.gamma", "D"),
        *_norm("norm2", "blocks.{}.norm2"),
        *_linear("mlp/fc1", "blocks.{}.mlp.fc1", "M D", "M"),
        *_linear("mlp/fc2", "blocks.{}.mlp.fc2", "D M", "D"),
        rule("scale2/scale", "blocks.{}.ls2.gamma", "D"),
        *_norm("norm", "norm"),
        rule("pooling/probe", "attn_pool.latent", "1 1 D"),
        *_linear("pooling/query", "attn_pool.q", "(H K) D", "(H K)"),
        *_linear("pooling/key_value", "attn_pool.kv", "(2 H K) D", "(2 H K)"),
        *_linear("pooling/out", "attn_pool.proj", "D (H K)", "D"),
        *_norm("pooling/norm", "attn_pool.norm"),
        *_linear("pooling/mlp/fc1", "attn_pool.mlp.fc1", "M D", "M"),
        *_linear("pooling/mlp/fc2", "attn_pool.mlp.fc2", "D M", "D"),
        *_linear("head", "head", "C D", "C"),
    ),
)
# Names of architectures whose GELU is the tanh form, or another function, without saying so.
TANH = re.compile(
    r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|large_patch16_siglip_(gap_)?512.*)"
)
QUICK = re.compile(r"vit_.*quickgelu.*")
# Of architectures that are no published size, and whose heads do not have 64 channels.
HEADS = {"vit_giantopt_": 16}
# How timm calls what `fit` of models.Preprocess means.
CROP_MODE_OF = {"cover": "center", "stretch": "squash", "inside": "border"}
CROP_MODES = tuple(CROP_MODE_OF.values())
GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
POOLS = {"cls": "token", "avg": "avg", "map": "map"}


def check_architecture(config: Mapping[str, Any]) -> None:
    """UserError for a DINOv3: it is of timm's Eva and gives the mean of its patches."""
    name = str(config.get("architecture", ""))
    if "dinov3" in name:
        raise UserError(
            f"config.json: architecture={name!r}; timm's DINOv3 cannot be read. Take the folder of "
            "the same model as Hugging Face's DINOv3ViTModel."
        )


def layout_for(_: ViTSpec) -> Layout:
    """The one that a model is written in."""
    return LAYOUT


def num_heads(config: Mapping[str, Any]) -> int | None:
    """By the architecture's name; None: it does not tell."""
    name = str(config.get("architecture", ""))
    return next((number for start, number in HEADS.items() if name.startswith(start)), None)


def fields(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The model's fields that its config.json tells. UserError for what cannot be computed here."""
    config = config or {}
    name, arguments = str(config.get("architecture", "")), json_fields.section(config, "model_args")
    default = "quick_gelu" if QUICK.match(name) else "gelu_tanh" if TANH.match(name) else "gelu"
    activation = json_fields.word(arguments, "act_layer", default, GELUS)
    return {"gelu": GELUS[activation], "norm_epsilon": 1e-6}


def check_pool(config: Mapping[str, Any] | None, pool: str) -> None:
    """UserError if config.json says another pooling than that of a model with these arrays."""
    arguments = json_fields.section(config, "model_args")
    in_use = arguments if arguments.get("global_pool") else (config or {})
    if json_fields.word(in_use, "global_pool", POOLS[pool], POOLS.values()) != POOLS[pool]:
        raise UserError(
            f"config.json: global_pool={in_use['global_pool']!r}, but its arrays are those of a "
            f"model with {POOLS[pool]!r}; with these arrays no other pooling can be computed here."
        )


def class_names(config: Mapping[str, Any] | None, num_classes: int) -> tuple[str, ...] | None:
    """From label_names, a list or as label_names.read takes them."""
    names = (config or {}).get("label_names")
    if isinstance(names, list):
        names = {str(i): name for i, name in enumerate(names)}
    labels = json_fields.section({"label_names": names}, "label_names")
    return label_names.read("label_names", labels, num_classes)


def preprocess(config: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """From pretrained_cfg: resized so that a central crop of `crop_pct` is the image.

    What it leaves out is as timm.data.resolve_data_config has it. UserError for what prediction
    does not have.
    """
    about = json_fields.section(config, "pretrained_cfg")
    if not about:
        return models.Preprocess(image_size, image_size)
    mode = json_fields.word(about, "crop_mode", "center", CROP_MODES)
    how = json_fields.word(about, "interpolation", "bicubic", models.INTERPOLATIONS)
    share = json_fields.positive(about, "crop_pct", 0.875)
    mean = json_fields.channels(about, "mean", (0.485, 0.456, 0.406))
    std = json_fields.channels(about, "std", (0.229, 0.224, 0.225))
    height, width = image_size
    json_fields.side("crop_pct", int(max(image_size) / share))
    before_crop = (int(height / share), int(width / share))
    resize: tuple[int, int] | int = before_crop
    fit = next(fit for fit, its in CROP_MODE_OF.items() if its == mode)
    if mode == "center" and before_crop[0] == before_crop[1]:
        resize, fit = before_crop[0], "stretch"  # the shorter side
    crop = None if resize == image_size and mode == "squash" else image_size
    return models.Preprocess(
        image_size,
        resize,
        crop,
        mean,
        std,
        how,
        fit=fit,
        longer="down" if isinstance(resize, int) else "nearest",
        middle="nearest" if crop else "down",
    )


def documents(
    spec: ViTSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    """config.json. UserError for a model that timm's ViT cannot be."""
    if spec.pre_logits:
        raise UserError("timm's ViT has no pre-logits, this model has: write --to=google_npz.")
    if spec.norm_epsilon != 1e-6:
        raise UserError(
            f"timm's ViT has layer norms with an epsilon of 1e-6, this model {spec.norm_epsilon}: "
            "it would compute something else. Write --to=huggingface."
        )
    height, width = about.image_size
    arguments: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": spec.patch_size,
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.num_heads,
        "qkv_bias": spec.qkv_bias == "all",
        "mlp_ratio": _ratio(spec.mlp_dim, spec.width),
        "class_token": spec.pool == "cls",
        "global_pool": POOLS[spec.pool],
        "fc_norm": False,
        "init_values": spec.layer_scale or None,
        "act_layer": "gelu" if spec.gelu == "exact" else "gelu_tanh",
    }
    config: dict[str, Any] = {
        "architecture": "vit_base_patch16_224",  # which all fields of model_args override
        "num_classes": num_classes,
        "num_features": spec.width,
        "global_pool": POOLS[spec.pool],
        "model_args": arguments,
        "pretrained_cfg": pretrained_cfg(num_classes, about),
    }
    if names:
        config["label_names"] = list(names)
    return {"config.json": config}


def pretrained_cfg(num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    """That part of config.json which says what images look like."""
    return {
        "num_classes": num_classes,
        "input_size": [3, *about.image_size],
        "fixed_input_size": True,
        "interpolation": about.interpolation,
        "crop_pct": _share(about),
        "crop_mode": "center" if isinstance(about.resize, int) else CROP_MODE_OF[about.fit],
        "mean": list(about.mean),
        "std": list(about.std),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


def _share(about: models.Preprocess) -> float:
    """Of the resized image that the crop keeps; timm divides by it and cuts to an integer."""
    if about.crop is None or about.resize is None:
        return 1.0
    if isinstance(about.resize, int):
        kept, side = min(about.crop), about.resize
    else:
        kept, side = about.crop[0], about.resize[0]
    return kept / side if int(kept / (kept / side)) == side else kept / (side + 0.5)


def _ratio(mlp_dim: int, width: int) -> float:
    """The factor that timm multiplies the width by and cuts to an integer."""
    ratio = mlp_dim / width
    return ratio if int(width * ratio) == mlp_dim else (mlp_dim + 0.5) / width
