"""timm's ViTs (vit_*), hybrids (vit_*_r50_* and the like) and BiT ResNets (resnetv2_*_bit).

GELU is exact, except in the architectures of _TANH, and the epsilon of layer norms is 1e-6, except
in those of _epsilon. Hybrids and BiTs divide weights by sqrt(variance + 1e-8) and have 1e-5 in
group norms, unlike the released code, so their models have these values here. Apart from the ViT of
a hybrid, their sizes are fixed by the architecture's name.
"""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.layout import (
    Layout,
    ResNetNames,
    resnet_rules,
    rule,
    torch_linear,
    torch_norm,
)  # fmt: skip
from vit_jax.weights.match import Match, best

VIT = Layout(
    title="timm's ViT",
    rules=(
        *torch_linear("patches", "patch_embed.proj", "D 3 P p", "D"),
        rule("cls", "cls_token", "1 1 D"),
        rule("positions/embedding", "pos_embed", "1 N D"),
        *torch_norm("norm1", "blocks.{}.norm1"),
        *torch_linear("attention/qkv", "blocks.{}.attn.qkv", "(3 H K) D", "(3 H K)"),
        *torch_linear("attention/out", "blocks.{}.attn.proj", "D (H K)", "D"),
        rule("scale1/scale", "blocks.{}.ls1.gamma", "D"),
        *torch_norm("norm2", "blocks.{}.norm2"),
        *torch_linear("mlp/fc1", "blocks.{}.mlp.fc1", "M D", "M"),
        *torch_linear("mlp/fc2", "blocks.{}.mlp.fc2", "D M", "D"),
        rule("scale2/scale", "blocks.{}.ls2.gamma", "D"),
        *torch_norm("norm", "norm"),
        rule("pooling/probe", "attn_pool.latent", "1 1 D"),
        *torch_linear("pooling/query", "attn_pool.q", "(H K) D", "(H K)"),
        *torch_linear("pooling/key_value", "attn_pool.kv", "(2 H K) D", "(2 H K)"),
        *torch_linear("pooling/out", "attn_pool.proj", "D (H K)", "D"),
        *torch_norm("pooling/norm", "attn_pool.norm"),
        *torch_linear("pooling/mlp/fc1", "attn_pool.mlp.fc1", "M D", "M"),
        *torch_linear("pooling/mlp/fc2", "attn_pool.mlp.fc2", "D M", "D"),
        *torch_linear("head", "head", "C D", "C"),
    ),
)
# Architectures whose GELU is the tanh form, or another function, by name alone.
_TANH = re.compile(
    r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|large_patch16_siglip_(gap_)?512.*)"
)
_QUICK = re.compile(r"vit_.*quickgelu.*")
# Heads of architectures, by the first pattern that their name begins with.
_HEADS = tuple(
    (rf"({pattern})(?![a-z])", number)
    for pattern, number in (
        (r"vit_giant_patch14_(reg\d_)?(dinov2|tipsv2)|vit_giant_patch16_radio", 24),
        (r"vit_base_patch16_gap", 16),
        (r"vit_base_patch\d+_plus", 14),
        (r"vit_so150m2", 13),
        (r"vit_small_resnet\d+d", 8),
        (r"test_vit2?(?!\d)", 2),
        (r"test_vit\d", 3),
        (r"(vit|deit)_tiny", 3),
        (r"vit_d?wee|vit_xsmall", 4),
        (r"vit_d?little", 5),
        (r"(vit|deit3?|flexivit)_small", 6),
        (r"(vit|deit3)_mediumd?", 8),
        (r"vit_betwixt", 10),
        (r"(vit|deit3?|flexivit|beit3)_base", 12),
        (r"vit_so150m", 14),
        (r"(vit|deit3|flexivit|beit3|eva)_(large|huge|giant)", 16),
        (r"vit_(giantopt|gigantic|so400m|intern300m)", 16),
    )
)
# timm's names for `fit` of models.Preprocess.
_CROP_MODE_OF = {"cover": "center", "stretch": "squash", "inside": "border"}
_CROP_MODES = tuple(_CROP_MODE_OF.values())
_GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
_POOLS = {"cls": "token", "avg": "avg", "map": "map"}

# --- hybrids and BiT

_COMPUTES = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}

_UNIT = {
    **{part: part for i in (1, 2, 3) for part in (f"conv{i}", f"norm{i}")},
    "projection": "downsample.conv",
    "projection_norm": "downsample.norm",
}


def _resnet_names(under: str, root: str) -> ResNetNames:
    return ResNetNames(
        root={"root/conv": f"{root}conv", "root/norm": f"{root}norm"},
        unit=_UNIT,
        folder=f"{under}stages.%d.blocks.{{}}.",
    )


def _hybrid_layout(title: str, root: str) -> Layout:
    under = "patch_embed.backbone."
    resnet = resnet_rules(
        "patches/resnet", _resnet_names(under, under + root), pre_activation=False
    )
    patches = torch_linear("patches/projection", "patch_embed.proj", "D F P p", "D")
    vit = tuple(r for r in VIT.rules if not r.ours.startswith("patches/"))
    return Layout(title, (*resnet, *patches, *vit), computes=_COMPUTES)


_HYBRID = _hybrid_layout("timm's hybrid", "stem.")
_HYBRID_OF_ROOT = _hybrid_layout("timm's hybrid without stages", "")
_BIT = Layout(
    title="timm's BiT",
    rules=(
        *resnet_rules("resnet", _resnet_names("", "stem."), pre_activation=True),
        *torch_norm("norm", "norm"),
        *torch_linear("head", "head.fc", "C D 1 1", "C"),
    ),
    computes=_COMPUTES,
)

# timm's architectures by (units, patch size in places of the feature map).
_HYBRIDS = {
    ((), 8): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), 1): "vit_small_r26_s32_224",
    ((3, 4, 9), 1): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), 1): "vit_large_r50_s32_224",
}
_HYBRID_ROOT_WIDTH = 64
_BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
_UNREAD_OF_BIT = ("act_layer", "avg_down", "basic", "output_stride", "preact", "stem_type")
_UNREAD_OF_HYBRID = ("padding_same",)

# --- reading


def read(
    opened: Opened,
    given: Given,
    layouts: tuple[Layout, ...] = (VIT, _HYBRID, _HYBRID_OF_ROOT, _BIT),
) -> ExternalWeights:
    """`Format.reads` for files of one of these layouts."""
    config = opened.config or {}
    name = str(config.get("architecture", ""))
    if "dinov3" in name:  # timm's Eva, which gives the mean of its patches
        raise UserError(
            f"config.json: architecture={name!r}; timm's DINOv3 cannot be read. Take the folder of "
            "the same model as Hugging Face's DINOv3ViTModel."
        )
    match = best(layouts, opened.tensors)
    config_json.check_sizes(opened, _sizes(match, config, given))
    if not match.is_bit:
        match = external.with_heads(opened, match, given, _heads(name))
    match, pads, image_size = external.with_image_size(
        opened, match, given, stated_image_size(config), class_position=_class_position(config)
    )
    _check_arguments(config, match)
    return external.external_weights(
        match,
        preprocess(config, image_size),
        fields={} if match.is_bit else _fields(config, match),
        class_names=class_names(config, match.sizes.get("C", 0)),
        pads_class_position=pads,
        assumed=_assumed(config),
    )


def _class_position(config: Mapping[str, Any]) -> bool | None:
    """Whether the class token has a position, which timm's arrays do not show; None: unknown."""
    arguments = config_json.section(config, "model_args")
    if arguments.get("no_embed_class") is None:
        return None
    return not config_json.flag(arguments, "no_embed_class", False)


def _assumed(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What neither the architecture nor another entry of config.json states."""
    if _heads(str(config.get("architecture", ""))):
        return assumed_of_images(config)
    arguments = config_json.section(config, "model_args")
    gelu = () if arguments.get("act_layer") else ("gelu",)
    return (*gelu, "norm_epsilon", *assumed_of_images(config))


def assumed_of_images(config: Mapping[str, Any]) -> tuple[str, ...]:
    """ "preprocess" without a section about it, whose absent entries have timm's defaults."""
    return () if config_json.section(config, "pretrained_cfg") else ("preprocess",)


def _heads(architecture: str) -> int | None:
    """The heads that an architecture has unless model_args say another number."""
    return next((number for pattern, number in _HEADS if re.match(pattern, architecture)), None)


def _epsilon(architecture: str) -> float:
    """The epsilon that an architecture's layer norms have."""
    return 1e-5 if re.match(r"vit_.*_clip_|beit3_", architecture) else 1e-6


def _sizes(match: Match, config: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Sizes in config.json; a hybrid's patches are of places in its ResNet's map."""
    sizes = match.sizes
    stated = {
        "num_classes": sizes.get("C", 0),
        "num_features": sizes["D"],
        "model_args.num_classes": sizes.get("C", 0),
        "model_args.in_chans": config_json.RGB,
    }
    if match.is_bit:
        return stated
    of_model = config_json.section(config, "model_args").get("img_size")
    key = "model_args.img_size" if of_model else "pretrained_cfg.input_size"
    return stated | {
        "model_args.embed_dim": sizes["D"],
        "model_args.depth": sizes["L"],
        **config_json.num_heads(sizes),
        "model_args.qkv_bias": config_json.flag_of(match.has("qkv_bias")),
        "model_args.mlp_ratio": config_json.mlp_ratio("model_args.mlp_ratio", sizes),
        "model_args.patch_size": config_json.patch("model_args.patch_size", sizes),
        key: config_json.images(key, match, given.image_size),
    }


def _check_arguments(config: Mapping[str, Any], match: Match) -> None:
    """UserError for arguments with which the same arrays make another model."""
    arguments = config_json.section(config, "model_args")
    unread = _UNREAD_OF_BIT if match.is_bit else _UNREAD_OF_HYBRID if match.resnet else ()
    unknown = [f"{name}={arguments[name]!r}" for name in unread if name in arguments]
    pool = arguments.get("global_pool") or config.get("global_pool") or "avg"
    if match.is_bit and pool != "avg":
        unknown.append(f"global_pool={pool!r}")
    if unknown:
        raise UserError(f"config.json: {', '.join(unknown)} cannot be computed here.")


def stated_image_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of images in pixels, if config.json says it."""
    of_model = config_json.section(config, "model_args").get("img_size")
    if of_model:
        return config_json.sides("img_size", of_model)
    size = config_json.section(config, "pretrained_cfg").get("input_size")  # with channels first
    if not size:
        return None
    return config_json.sides("input_size", config_json.without_channels(size))


def _fields(config: Mapping[str, Any], match: Match) -> dict[str, Any]:
    """Fields of a ViT that its config.json states. UserError for another pooling."""
    name, arguments = str(config.get("architecture", "")), config_json.section(config, "model_args")
    default = "quick_gelu" if _QUICK.match(name) else "gelu_tanh" if _TANH.match(name) else "gelu"
    activation = config_json.word(arguments, "act_layer", default, _GELUS)
    pool = _POOLS[external.pool(match)]
    in_use = arguments if arguments.get("global_pool") else config
    if config_json.word(in_use, "global_pool", pool, _POOLS.values()) != pool:
        raise UserError(
            f"config.json: global_pool={in_use['global_pool']!r}, but its arrays are those of a "
            f"model with {pool!r}; with these arrays no other pooling can be computed here."
        )
    fields: dict[str, Any] = {"gelu": _GELUS[activation], "norm_epsilon": _epsilon(name)}
    if match.has("scale1"):
        fields["layer_scale"] = config_json.positive(arguments, "init_values", 1e-5)
    return fields


def class_names(config: Mapping[str, Any], num_classes: int) -> ClassNames:
    """Names of label_names: a list, or as config_json.class_names takes them."""
    names = config.get("label_names")
    if isinstance(names, list):
        names = {str(i): name for i, name in enumerate(names)}
    labels = config_json.section({"label_names": names}, "label_names")
    return config_json.class_names("label_names", labels, num_classes)


def preprocess(config: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """Preparation by pretrained_cfg: resizing such that a central crop of `crop_pct` is the image.

    Defaults are those of timm.data.resolve_data_config. UserError for steps that prediction lacks.
    """
    about = config_json.section(config, "pretrained_cfg")
    if not about:
        return models.Preprocess(image_size, image_size)
    mode = config_json.word(about, "crop_mode", "center", _CROP_MODES)
    interpolation = config_json.word(about, "interpolation", "bicubic", models.INTERPOLATIONS)
    kept = config_json.positive(about, "crop_pct", 0.875)
    height, width = image_size
    config_json.side("crop_pct", int(max(image_size) / kept))
    before_crop = (int(height / kept), int(width / kept))
    resize: tuple[int, int] | int = before_crop
    fit = next(fit for fit, its in _CROP_MODE_OF.items() if its == mode)
    if mode == "center" and before_crop[0] == before_crop[1]:
        resize, fit = before_crop[0], "stretch"  # the shorter side
    crop = None if resize == image_size and mode == "squash" else image_size
    return models.Preprocess(
        image_size,
        resize,
        crop,
        config_json.channels(about, "mean", (0.485, 0.456, 0.406)),
        config_json.channels(about, "std", (0.229, 0.224, 0.225)),
        interpolation,
        fit=fit,
        longer="down" if isinstance(resize, int) else "nearest",
        middle="nearest" if crop else "down",
    )


# --- writing


def _documents(
    spec: Any, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    if isinstance(spec, BiTSpec):
        config = _bit_config(spec, num_classes, about)
    elif isinstance(spec, HybridSpec):
        config = _hybrid_config(spec, num_classes, about)
    else:
        config = vit_config(spec, num_classes, about)
    if names:
        config["label_names"] = list(names)
    return {"config.json": config}


def vit_config(spec: ViTSpec, num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    """config.json of a ViT. UserError for what its architecture here does not state."""
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
        "global_pool": _POOLS[spec.pool],
        "fc_norm": False,
        "init_values": spec.layer_scale or None,
        "act_layer": "gelu" if spec.gelu == "exact" else "gelu_tanh",
    }
    return {
        "architecture": "vit_base_patch16_224",  # which all fields of model_args override
        "num_classes": num_classes,
        "num_features": spec.width,
        "global_pool": _POOLS[spec.pool],
        "model_args": arguments,
        "pretrained_cfg": pretrained_cfg(num_classes, about),
    }


def pretrained_cfg(num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    """The section of config.json about images."""
    return {
        "num_classes": num_classes,
        "input_size": [3, *about.image_size],
        "fixed_input_size": True,
        "interpolation": about.interpolation,
        "crop_pct": _crop_pct(about),
        "crop_mode": "center" if isinstance(about.resize, int) else _CROP_MODE_OF[about.fit],
        "mean": list(about.mean),
        "std": list(about.std),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


def _crop_pct(about: models.Preprocess) -> float:
    """Part of the resized image in the crop; timm divides by it and cuts to an integer."""
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


def _bit_config(spec: BiTSpec, num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    for bit in _BITS:
        published = models.spec(f"R{bit}")
        if (published.units, published.root_width) == (spec.units, spec.root_width):
            break
    else:
        raise UserError(
            f"timm has no BiT with units={spec.units} and root_width={spec.root_width}, but "
            f"{', '.join(f'R{bit}' for bit in _BITS)}. Write --to=huggingface."
        )
    return {
        "architecture": f"resnetv2_{bit}_bit",
        "num_classes": num_classes,
        "num_features": spec.map_channels,
        "global_pool": "avg",
        "pretrained_cfg": pretrained_cfg(num_classes, about)
        | {"fixed_input_size": False, "first_conv": "stem.conv", "classifier": "head.fc"},
    }


def _hybrid_config(spec: HybridSpec, num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    name = _HYBRIDS.get((spec.units, spec.map_patch_size))
    if name is None or spec.root_width != _HYBRID_ROOT_WIDTH:
        raise UserError(
            f"timm has no hybrid with units={spec.units}, root_width={spec.root_width} and patches "
            f"of {spec.patch_size} pixels, but those of R+ViT-<size>/16, R26+ViT-<size>/32, "
            "R50+ViT-<size>/16 and R50+ViT-<size>/32."
        )
    config = vit_config(spec, num_classes, about)
    config["architecture"] = name
    config["model_args"]["patch_size"] = spec.map_patch_size
    first = "stem.conv" if spec.units else "conv"
    config["pretrained_cfg"]["first_conv"] = f"patch_embed.backbone.{first}"
    return config


def _layout_for(spec: Any) -> Layout:
    if isinstance(spec, BiTSpec):
        return _BIT
    if isinstance(spec, HybridSpec):
        return _HYBRID if spec.units else _HYBRID_OF_ROOT
    return VIT


FORMAT = Format(
    destination="timm",
    reads=read,
    holds=lambda spec, _: (
        type(spec) in (ViTSpec, HybridSpec, BiTSpec)
        and not getattr(spec, "distillation_token", False)
    ),
    layout_for=_layout_for,
    documents=_documents,
    hint="Write --to=google_npz or checkpoint.",
)
