"""timm's ViTs, distilled DeiTs, hybrids (vit_*_r50_*), BiTs and EfficientNets, in and out.

GELU is exact, except in the architectures of _TANH, and the epsilon of layer norms is 1e-6, except
in those of _WIDE_EPSILON. Hybrids and BiTs (resnetv2_*_bit) divide weights by
sqrt(variance + 1e-8) and have 1e-5 in group norms, unlike the released code, so their models have
these values here. Apart from the ViT of a hybrid, the architecture's name fixes their sizes.

EfficientNets are tf_efficientnet_b0 and so on, and efficientnet_b0, which PyTorch trained. They
have the same arrays: the architecture's name says which padding and epsilon they are for.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import RUNNING_MEAN, RUNNING_VARIANCE
from vit_jax.models import efficientnet
from vit_jax.models.bit import BiTSpec
from vit_jax.models.efficientnet import SQUEEZE, STAGES, EfficientNetSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import (
    ClassNames,
    Documents,
    ExternalWeights,
    Format,
    ModelToWrite,
)
from vit_jax.weights.files import Tensors, from_array
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import Match, MisfitError, best
from vit_jax.weights.tables import Layout, Pack, rules

# --- tables

PATCHES = "patches : patch_embed.proj"
VIT_TABLE = """
cls                 : cls_token : 1 1 *
registers           : reg_token : 1 *
patches/norm        : patch_embed.norm
pre_norm            : norm_pre
norm                : norm
feature_norm        : fc_norm
pooling/probe       : attn_pool.latent : 1 1 *
pooling/query       : attn_pool.q
pooling/key_value   : attn_pool.kv
pooling/out         : attn_pool.proj
pooling/norm        : attn_pool.norm
pooling/mlp/fc[1 2] : attn_pool.mlp.fc[1 2]
head                : head
"""
POSITIONS = "positions/embedding : pos_embed : 1 *"
BLOCKS = """
norm1         : blocks.{}.norm1
attention/qkv : blocks.{}.attn.qkv
attention/out : blocks.{}.attn.proj
scale1/scale  : blocks.{}.ls1.gamma
norm2         : blocks.{}.norm2
mlp/fc[1 2]   : blocks.{}.mlp.fc[1 2]
scale2/scale  : blocks.{}.ls2.gamma
"""
GATED_BLOCKS = BLOCKS.replace(
    "mlp/fc[1 2]   : blocks.{}.mlp.fc[1 2]",
    """
mlp/gate : blocks.{}.mlp.fc1_g
mlp/fc1  : blocks.{}.mlp.fc1_x
mlp/fc2  : blocks.{}.mlp.fc2
""",
)
_PARALLEL_BLOCKS = """
norm1                      : blocks.{}.in_norm
attention/qkv/kernel       : blocks.{}.attn.qkv.weight
attention/query_norm/scale : blocks.{}.q_norm.weight
attention/key_norm/scale   : blocks.{}.k_norm.weight
attention/out              : blocks.{}.attn_out_proj
mlp/fc1/kernel             : blocks.{}.mlp.fc1.weight
mlp/fc1/bias               : blocks.{}.mlp_bias
mlp/fc2                    : blocks.{}.mlp_out_proj
"""
_DISTILLED_TABLE = """
distillation_token : dist_token : 1 1 *
distillation_head  : head_dist
"""
_HYBRID_TABLE = """
patches/resnet/root/[conv norm]  : patch_embed.backbone.stem.[conv norm]
patches/resnet/%/conv[1 2 3]     : patch_embed.backbone.stages.%.blocks.{}.conv[1 2 3]
patches/resnet/%/projection      : patch_embed.backbone.stages.%.blocks.{}.downsample.conv
patches/resnet/%/norm[1 2 3]     : patch_embed.backbone.stages.%.blocks.{}.norm[1 2 3]
patches/resnet/%/projection_norm : patch_embed.backbone.stages.%.blocks.{}.downsample.norm
patches/projection               : patch_embed.proj
"""
_BIT_TABLE = """
resnet/root/conv     : stem.conv
resnet/%/conv[1 2 3] : stages.%.blocks.{}.conv[1 2 3]
resnet/%/projection  : stages.%.blocks.{}.downsample.conv
resnet/%/norm[1 2 3] : stages.%.blocks.{}.norm[1 2 3]
norm                 : norm
head                 : head.fc : * 1 1
"""
_EFFICIENTNET_UNITS = """
%/expand    : blocks.%.{}.conv_pw : * 1 1
%/norm1     : blocks.%.{}.bn1
%/depthwise : blocks.%.{}.conv_dw
%/norm2     : blocks.%.{}.bn2
%/squeeze   : blocks.%.{}.se.conv_reduce : * 1 1
%/excite    : blocks.%.{}.se.conv_expand : * 1 1
%/project   : blocks.%.{}.conv_pwl : * 1 1
%/norm3     : blocks.%.{}.bn3
"""
# Without an expansion: a convolution and a norm less, and others have their names.
_NARROW_UNITS = """
%/depthwise : blocks.%.{}.conv_dw
%/norm2     : blocks.%.{}.bn1
%/squeeze   : blocks.%.{}.se.conv_reduce : * 1 1
%/excite    : blocks.%.{}.se.conv_expand : * 1 1
%/project   : blocks.%.{}.conv_pw : * 1 1
%/norm3     : blocks.%.{}.bn2
"""


def _efficientnet_axes() -> dict[str, str]:
    """Axes of our parameters by name.

    Letters: C0 and C1 to C7 channels behind root and stages, U1 to U7 units of the rests, Q1 to Q7
    and R1 to R7 what first units and rests squeeze to.
    """
    named = {"root/conv/kernel": "3 3' 3'' C0", "top/conv/kernel": "C7 D"}
    channels = {"root/norm": "C0", "top/norm": "D"}  # of norms
    for number, stage in enumerate(STAGES, 1):
        for part in ("first", "rest"):
            is_first = part == "first"
            before, after = f"C{number - 1 if is_first else number}", f"C{number}"
            squeezed = f"{'Q' if is_first else 'R'}{number}"
            layers = "1" if is_first else f"U{number}"
            wide = stage.expansion > 1
            hidden = f"{stage.expansion}{before}" if wide else before
            here, k = f"stage{number}/{part}/block", stage.kernel_size
            dense = {"squeeze": (hidden, squeezed), "excite": (squeezed, hidden)}
            dense |= {"project": (hidden, f"{after}'" if hidden == after else after)}
            if wide:
                dense["expand"] = (before, hidden)
                channels[f"{here}/norm1"] = f"{layers} {hidden}"
            for name, (inputs, outputs) in dense.items():
                named[f"{here}/{name}/kernel"] = f"{layers} {inputs} {outputs}"
                if name in ("squeeze", "excite"):
                    named[f"{here}/{name}/bias"] = f"{layers} {outputs}"
            named[f"{here}/depthwise/kernel"] = f"{layers} {k} {k}' {hidden}"
            channels[f"{here}/norm2"] = f"{layers} {hidden}"
            channels[f"{here}/norm3"] = f"{layers} {after}"
    for name, axes in channels.items():
        for leaf in ("scale", "bias", RUNNING_MEAN, RUNNING_VARIANCE):
            named[f"{name}/{leaf}"] = axes
    return named


_COMPUTES = {"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5}
_BEIT_TABLE = """
blocks/block/positions/offsets_2d : blocks.{}.attn.relative_position_bias_table
norm[1 2]                         : blocks.{}.norm[1 2]
attention/qkv/kernel              : blocks.{}.attn.qkv.weight
attention/[query value]_bias      : blocks.{}.attn.[q_bias v_bias]
attention/out                     : blocks.{}.attn.proj
scale[1 2]/scale                  : blocks.{}.gamma_[1 2]
mlp/fc[1 2]                       : blocks.{}.mlp.fc[1 2]
"""
_RELPOS_TABLE = "blocks/block/positions/fc[1 2] : blocks.{}.attn.rel_pos.mlp.fc[1 2]"
_SHARED_RELPOS_TABLE = "positions/fc[1 2] : shared_rel_pos.mlp.fc[1 2]"
# What the arrays of a ViT's blocks are for.
_USUAL: dict[str, Any] = {"mlp": "mlp", "parallel": False, "norm_branch": False}


def _vit(title: str, *tables: str, packs: tuple[Pack, ...] = (), **computes: Any) -> Layout:
    """A layout of ViTs, for the fields that differ from `_USUAL`."""
    optional = ("patch_bias", "dense_bias", "norm", "attention_norm", "mlp_norm")
    return Layout(
        title,
        rules(PATCHES, VIT_TABLE, *tables),
        computes=_USUAL | computes,
        optional=optional if computes.get("norm_branch") else (*optional, "norm_bias"),
        packs=packs,
    )


_NORM_BRANCH_BLOCKS = re.sub(r"norm([12])  +:", r"scale\1 :", re.sub("scale.*", "", BLOCKS))
_SUB_NORMS = "attention/norm : blocks.{}.attn.norm\nmlp/norm : blocks.{}.mlp.norm"
VIT = _vit("timm's ViT", POSITIONS, BLOCKS, _SUB_NORMS)
_GATED = _vit(
    "timm's ViT with SwiGLU",
    *(POSITIONS, GATED_BLOCKS),
    packs=(Pack(".mlp.fc1.", (".mlp.fc1_g.", ".mlp.fc1_x.")),),
    mlp="swiglu",
)
# That of AIMv2 is written in two arrays.
_GATED_RMS = dataclasses.replace(_GATED, packs=(), computes={**_GATED.computes, "norm": "rms"})
_PARALLEL = _vit(
    "timm's ViT of parallel blocks",
    *(POSITIONS, _PARALLEL_BLOCKS),
    packs=(Pack(".in_proj.", (".mlp.fc1.", ".attn.qkv."), widths=(3,)),),
    parallel=True,
    qk_norm=True,
)
_BEIT = _vit("timm's BEiT", _BEIT_TABLE, position_embedding="relative_2d", qkv_bias="query_value")
_MLP_OF_LAYERS: Any = {"position_embedding": "relative_mlp"}
_RELPOS = _vit("timm's relpos ViT", _RELPOS_TABLE, BLOCKS, **_MLP_OF_LAYERS)
_SHARED_RELPOS = _vit(
    "timm's srelpos ViT",
    *(_SHARED_RELPOS_TABLE, BLOCKS),
    position_embedding="relative_mlp",
    position_at="shared",
)
# Their arrays have the names and shapes of those with norms before attention and MLP.
_NORM_BRANCH = _vit("timm's rpn ViT", POSITIONS, _NORM_BRANCH_BLOCKS, norm_branch=True)
_RELPOS_NORM_BRANCH = _vit(
    "timm's relpos rpn ViT",
    *(_RELPOS_TABLE, _NORM_BRANCH_BLOCKS),
    norm_branch=True,
    **_MLP_OF_LAYERS,
)
_RELATIVE = (_BEIT, _SHARED_RELPOS, _RELPOS, _RELPOS_NORM_BRANCH)
_NORM_BRANCHES = (_NORM_BRANCH, _RELPOS_NORM_BRANCH)
VITS = (VIT, _GATED, _PARALLEL, _BEIT, _RELPOS, _SHARED_RELPOS)
_DISTILLED = dataclasses.replace(
    VIT,
    title="timm's distilled DeiT",
    rules=VIT.rules + rules(_DISTILLED_TABLE),
    needed=("cls", "distillation_token"),
)
_HYBRID = Layout(
    "timm's hybrid", rules(_HYBRID_TABLE, VIT_TABLE, POSITIONS, BLOCKS), computes=_COMPUTES
)
_HYBRID_OF_ROOT = Layout(
    "timm's hybrid without stages",
    rules(_HYBRID_TABLE.replace("stem.", ""), VIT_TABLE, POSITIONS, BLOCKS),
    computes=_COMPUTES,
)
_BIT = Layout("timm's BiT", rules(_BIT_TABLE), computes=_COMPUTES)
_EFFICIENTNET_AXES = _efficientnet_axes()
_EFFICIENTNET = Layout(
    title="timm's EfficientNet",
    rules=(
        *rules("root/conv : conv_stem\nroot/norm : bn1", own=_EFFICIENTNET_AXES),
        *rules(_NARROW_UNITS, own=_EFFICIENTNET_AXES, stages=[1]),
        *rules(_EFFICIENTNET_UNITS, own=_EFFICIENTNET_AXES, stages=range(2, len(STAGES) + 1)),
        *rules("top/conv : conv_head : * 1 1\ntop/norm : bn2", own=_EFFICIENTNET_AXES),
        *rules("head : classifier"),
    ),
    ignored=(r".*\.num_batches_tracked",),
    needed=tuple(f"stage{i}/first" for i in range(1, len(STAGES) + 1)),
)

# --- architectures

# Architectures whose GELU is the tanh form, or another function, by name alone.
_TANH = re.compile(
    r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|large_patch16_siglip_(gap_)?512.*)"
)
_QUICK = re.compile(r"vit_.*quickgelu.*")
_RPN = re.compile(r"vit_.*_rpn_")
_WIDE_EPSILON = re.compile(r"vit_.*_clip_|beit3_|aimv2_")  # 1e-5 in layer norms
# Architectures of its eva.py, which formats/eva.py reads.
EVA = re.compile(r"eva_giant|eva02_|vit_pe_|vit_\w+_(dinov3|lingbot)|vit_[a-z]+_patch16_rope_")
# Architectures that cannot be computed here, and what it is that they have.
_REFUSED = {
    r"vit_d(wee|little|pwee)": "attention whose weights are the difference of two",
    r"vit_pwee": "one LayerScale for attention and MLP together, where model.layer_scale has two",
    r"vit_\w+_18x2_": "two attentions and two MLPs side by side in a block",
    r"vit_\w+_resnet\d+d_": "a ResNet-D before its blocks, with three convolutions as its root",
    r"samvit_": "attention within windows",
    r"naflexvit_": "patches of images of any shape (NaFlex), under other names",
    r"vit_\w+_mci_": "patches embedded by several convolutions",
    r"vit_\w+_sapiens2": "a LayerScale for attention alone, and fewer keys and values than queries",
}
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
        (r"beit(v2)?_base", 12),
        (r"beit(v2)?_large", 16),
        (r"vit_relpos_base_patch\d+_plus", 14),
        (r"vit_relpos_base", 12),
        (r"vit_s?relpos_medium", 8),
        (r"vit_s?relpos_small", 6),
        (r"test_vit_relpos", 3),
        (r"aimv2_large", 8),
        (r"aimv2_huge", 12),
        (r"aimv2_1b", 16),
        (r"aimv2_3b", 24),
        (r"(vit|deit3?|flexivit|beit3)_base", 12),
        (r"vit_so150m", 14),
        (r"(vit|deit3|flexivit|beit3|eva)_(large|huge|giant)", 16),
        (r"vit_(giantopt|gigantic|so400m|intern300m)", 16),
    )
)
# timm's names for `fit` of models.Preprocess.
_CROP_MODE_OF = {"cover": "center", "stretch": "squash", "inside": "border"}
_CROP_MODES = tuple(_CROP_MODE_OF.values())
_GELUS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS = {"cls": "token", "avg": "avg", "map": "map"}

# Architectures whose other arguments a config.json can state, by the fields that it cannot.
_OF_ARCHITECTURE = {
    **_USUAL, "norm": "layer", "norm_epsilon": 1e-6, "qk_norm": False, "attention_norm": False,
    "mlp_norm": False, "dense_bias": True, "patch_norm": False, "pre_logits": False,
}  # fmt: skip
_OF_ARGUMENTS = (
    "class_token", "patch_bias", "pre_norm", "final_norm", "pool_prefix", "position_embedding",
    "position_at", "position_hidden", "qkv_bias",
)  # fmt: skip
_TABLES = ("learned_1d", "sincos_1d", "sincos_2d")  # positions that are written as a table
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "vit_base_patch16_224": _OF_ARCHITECTURE,
    "vit_base_patch16_clip_224": _OF_ARCHITECTURE | {"norm_epsilon": 1e-5},
    "beit3_base_patch16_224": _OF_ARCHITECTURE
    | {"norm_epsilon": 1e-5, "attention_norm": True, "mlp_norm": True},
    "test_vit4": _OF_ARCHITECTURE | {"norm": "rms"},
    "vit_giant_patch14_dinov2": _OF_ARCHITECTURE | {"mlp": "swiglu"},
    "aimv2_large_patch14_224": _OF_ARCHITECTURE
    | {"mlp": "swiglu", "norm": "rms", "norm_epsilon": 1e-5}
    | {"dense_bias": False, "patch_norm": True},
    "vit_base_patch16_rpn_224": _OF_ARCHITECTURE | {"norm_branch": True},
    "vit_base_patch16_xp_224": _OF_ARCHITECTURE
    | {"norm": "rms", "parallel": True, "qk_norm": True},
}
# timm's architectures by the model here whose sizes they have.
_HYBRIDS = {
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+ViT-S/32": "vit_small_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "R50+ViT-L/32": "vit_large_r50_s32_224",
}
_BITS = {f"R{x}": f"resnetv2_{x}_bit" for x in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")}
_EFFICIENTNETS = {f"EfficientNet-{x}": f"efficientnet_{x.lower()}" for x in efficientnet.SIZES}
_EFFICIENTNET_NAME = re.compile(r"(?P<tf>tf_)?efficientnet_(b[0-8]|l2)(_(ap|ns|ns_475))?")
# Arguments with which the same arrays make another model, by a layout's title.
_UNREAD_ARGUMENTS = {
    _BIT.title: ("act_layer", "avg_down", "basic", "output_stride", "preact", "stem_type"),
    _HYBRID.title: ("padding_same",),
    _HYBRID_OF_ROOT.title: ("padding_same",),
    _EFFICIENTNET.title: (
        "act_layer", "norm_layer", "se_layer", "aa_layer", "group_size", "output_stride",
        "round_chs_fn",
    ),
}  # fmt: skip
_FALSE_OF_VIT = ("dynamic_img_pad",)
_PADDINGS = {"same": "same", "": "symmetric"}
_EPSILONS = {"same": 1e-3, "symmetric": 1e-5}  # the default of an architecture with this padding
# --- reading


def _read(opened: Opened) -> ExternalWeights:
    config = opened.entries
    if "pretrained_cfg" not in config and "input_size" in config:  # all in one, until timm 0.6
        config = config | {"pretrained_cfg": config, "label_names": config.get("labels")}
        opened = dataclasses.replace(opened, config=config)
    name = str(config.get("architecture", ""))
    for names, reason in _REFUSED.items():
        if re.match(names, name):
            external.refuse({"architecture": name}, f"has {reason}")
    if EVA.match(name):
        raise MisfitError([])
    vits = _NORM_BRANCHES if _RPN.match(name) else VITS
    layouts = (_EFFICIENTNET, *vits, _HYBRID, _HYBRID_OF_ROOT, _BIT, _DISTILLED)
    match = best(layouts, opened.tensors)
    external.check_sizes(opened, {"num_features": match.sizes["D"]})
    if "P" in match.sizes:
        stated = {"embed_dim": "D", "depth": "L", "patch_size": "P"}
        sizes = {f"model_args.{key}": match.sizes[letter] for key, letter in stated.items()}
        external.check_sizes(opened, sizes)
    _check_arguments(config, match)
    if match.layout is _EFFICIENTNET:
        return _read_efficientnet(opened, match)
    if not match.is_bit:
        heads = _heads(name)
        if match.layout in (_PARALLEL, *_RELATIVE):  # their arrays show it
            heads = match.sizes["H"]
            external.check_sizes(opened, {"model_args.num_heads": heads})
        match = external.with_heads(opened, match, heads)
    # timm's arrays do not show whether the class token has a position.
    arguments, class_position = external.section(config, "model_args"), None
    if arguments.get("no_embed_class") is not None:
        class_position = not external.flag(arguments, "no_embed_class")
    match, image_size = external.with_image_size(
        opened, match, stated_image_size(config), class_position=class_position
    )
    external.check_offsets(match, image_size)
    return external.external_weights(
        match,
        preprocess(config, image_size),
        fields={} if match.is_bit else _fields(config, match),
        class_names=class_names(config, match.sizes.get("C", 0)),
        assumed=_assumed(config),
    )


def _assumed(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Values that neither the architecture nor another entry of config.json states."""
    if _heads(str(config.get("architecture", ""))):
        return assumed_of_images(config)
    arguments = external.section(config, "model_args")
    gelu = () if arguments.get("act_layer") else ("gelu",)
    return (*gelu, "norm_epsilon", *assumed_of_images(config))


def assumed_of_images(config: Mapping[str, Any]) -> tuple[str, ...]:
    """ "preprocess" without a section about it, whose absent entries have timm's defaults."""
    return () if external.section(config, "pretrained_cfg") else ("preprocess",)


def _heads(architecture: str) -> int | None:
    return next((number for pattern, number in _HEADS if re.match(pattern, architecture)), None)


def _check_arguments(config: Mapping[str, Any], match: Match) -> None:
    """UserError for arguments with which the same arrays make another model."""
    arguments = external.section(config, "model_args")
    unread = _UNREAD_ARGUMENTS.get(match.layout.title, ())
    unknown = {name: arguments[name] for name in unread if arguments.get(name) is not None}
    pool = arguments.get("global_pool") or config.get("global_pool") or "avg"
    if "P" in match.sizes:
        unknown |= {name: True for name in _FALSE_OF_VIT if external.flag(arguments, name)}
    elif pool != "avg":
        unknown["global_pool"] = pool
    if match.layout is _EFFICIENTNET and not _known_efficientnet(config):
        unknown["architecture"] = config["architecture"]
    if unknown:
        external.refuse(unknown)


def _known_efficientnet(config: Mapping[str, Any]) -> re.Match | None:
    architecture = str(config.get("architecture", "tf_efficientnet_b0"))
    return _EFFICIENTNET_NAME.fullmatch(architecture.partition(".")[0])


def stated_image_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of images in pixels, if config.json says it."""
    of_model = external.section(config, "model_args").get("img_size")
    if of_model:
        return external.sides("img_size", of_model)
    size = external.section(config, "pretrained_cfg").get("input_size")
    if isinstance(size, list) and len(size) == 3:
        size = size[1:]  # behind the channels
    return external.sides("input_size", size) if size else None


def _fields(config: Mapping[str, Any], match: Match) -> dict[str, Any]:
    name, arguments = str(config.get("architecture", "")), external.section(config, "model_args")
    gelu = "quick_gelu" if _QUICK.match(name) else "gelu_tanh" if _TANH.match(name) else "gelu"
    epsilon = 1e-5 if _WIDE_EPSILON.match(name) else 1e-6
    fields: dict[str, Any] = {"norm_epsilon": epsilon, "registers": match.sizes.get("R", 0)}
    fields["gelu"] = "exact"
    gated = match.layout.computes.get("mlp") == "swiglu"
    if gated and match.has("pooling"):  # the SiLU is that of its MLP too
        external.refuse({"global_pool": "map", "act_layer": "silu"}, file="its arrays")
    if not gated:
        fields["gelu"] = _GELUS[external.word(arguments, "act_layer", gelu, _GELUS)]
    in_use = arguments if arguments.get("global_pool") else config
    default = "avg" if match.has("feature_norm") else POOLS[external.pool(match)]
    fields |= pool_fields(in_use, default, match)
    included = arguments.get("pool_include_prefix", name.startswith("test_vit3"))
    fields["pool_prefix"] = external.flag({"pool_include_prefix": included}, "pool_include_prefix")
    if fields["pool_prefix"] and fields["pool"] != "map":
        external.refuse({"pool_include_prefix": True})
    if match.has("scale1") and match.layout not in _NORM_BRANCHES:
        fields["layer_scale"] = external.positive(arguments, "init_values", 1e-5)
    return fields


def pool_fields(stated: Mapping[str, Any], default: str, match: Match) -> dict[str, Any]:
    """The fields `pool` and `class_token`. UserError for another pooling than the arrays'."""
    pool = external.word(stated, "global_pool", default, POOLS.values())
    if (pool == "map") != match.has("pooling") or (pool == "token" and not match.has("cls")):
        external.refuse({"global_pool": pool}, f"is not the arrays', {POOLS[external.pool(match)]}")
    ours = next(ours for ours, its in POOLS.items() if its == pool)
    return {"pool": ours, "class_token": match.has("cls") and pool != "token"}


def class_names(config: Mapping[str, Any], num_classes: int) -> ClassNames:
    """Names of label_names: a list, or as external.class_names takes them."""
    names = config.get("label_names")
    if isinstance(names, list):
        names = {str(i): name for i, name in enumerate(names)}
    labels = external.section({"label_names": names}, "label_names")
    return external.class_names("label_names", labels, num_classes)


def preprocess(config: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """Preparation by pretrained_cfg: resizing such that a central crop of `crop_pct` is the image.

    Defaults are those of timm.data.resolve_data_config.
    """
    about = external.section(config, "pretrained_cfg")
    if not about:
        return models.Preprocess(image_size, image_size)
    mode = external.word(about, "crop_mode", "center", _CROP_MODES)
    interpolation = external.word(about, "interpolation", "bicubic", models.INTERPOLATIONS)
    kept = external.cropped_part(about, 0.875, image_size)
    height, width = image_size
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
        external.channels(about, "mean", (0.485, 0.456, 0.406)),
        external.channels(about, "std", (0.229, 0.224, 0.225)),
        interpolation,
        fit=fit,
        longer="down" if isinstance(resize, int) else "nearest",
        middle="nearest" if crop else "down",
    )


def _read_efficientnet(opened: Opened, match: Match) -> ExternalWeights:
    config, num_classes = opened.entries, match.sizes.get("C", 0)
    name = _efficientnet_name(opened, match)
    fields = _efficientnet_fields(config)
    published = efficientnet.SIZES.get(name.removeprefix("EfficientNet-"), efficientnet.SIZES["B0"])
    usual = published.image_size_px
    arguments = external.section(config, "model_args")
    of_name = {"padding": "pad_type", "batch_norm_epsilon": "bn_eps"}
    unstated = [field for field, its in of_name.items() if arguments.get(its) is None]
    known_size = stated_image_size(config) or opened.caller_image_size
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **fields),
        num_classes=num_classes,
        class_names=class_names(config, num_classes),
        preprocess=preprocess(config, known_size or (usual, usual)),
        match=match,
        assumed=(
            *(() if "architecture" in config else unstated),
            *(() if known_size else ("image_size",)),
            *assumed_of_images(config),
        ),
    )


def _efficientnet_name(opened: Opened, match: Match) -> str:
    sizes, stages = match.sizes, range(1, len(STAGES) + 1)
    units = [1 + (sizes[f"U{i}"] if match.has(f"stage{i}/rest") else 0) for i in stages]
    channels = [sizes[f"C{i}"] for i in (0, *stages)]
    squeezed = [sizes[f"Q{i}"] for i in stages]
    squeezed += [sizes[f"R{i}"] for i in stages if match.has(f"stage{i}/rest")]
    from_inputs = channels[:-1] + [channels[i] for i in stages if match.has(f"stage{i}/rest")]
    name = efficientnet.with_sizes(units, channels, sizes["D"])
    if name is None or squeezed != [max(1, inputs // SQUEEZE) for inputs in from_inputs]:
        its = f"stages of {units} units and {channels[1:]} channels, squeezed to {squeezed}"
        raise UserError(f"It has {its}, not EfficientNet-B0's times coefficients.")
    return name


def _efficientnet_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    arguments, known = external.section(config, "model_args"), _known_efficientnet(config)
    assert known
    default = "same" if known["tf"] else ""
    stated = arguments.get("pad_type")  # "" has a meaning
    word = stated if stated == "" else external.word(arguments, "pad_type", default, _PADDINGS)
    usual = _EPSILONS[_PADDINGS[default]]
    return {
        "padding": _PADDINGS[word],
        "batch_norm_epsilon": external.positive(arguments, "bn_eps", usual),
    }


# --- writing


def _documents(model: ModelToWrite) -> Documents:
    make = _vit_config if isinstance(model.spec, ViTSpec) else _cnn_config
    return {"config.json": (_hybrid_config if isinstance(model.spec, HybridSpec) else make)(model)}


def _vit_config(model: ModelToWrite) -> dict[str, Any]:
    spec: ViTSpec = model.spec
    fixed = {name: getattr(spec, name) for name in _OF_ARCHITECTURE}
    architecture = next((its for its, same in _ARCHITECTURES.items() if same == fixed), None)
    if spec.distillation_token:
        architecture = "deit_base_distilled_patch16_224" if fixed == _OF_ARCHITECTURE else None
    silu_pools = spec.mlp != "mlp" and spec.pool == "map"
    layout = _layout_for(spec)
    as_table = spec.position_embedding in _TABLES and spec.position_place == "input"
    other = spec.patch_bias == spec.pre_norm or silu_pools or not (as_table or layout in _RELATIVE)
    if architecture is None or other:
        others = ("patch_bias", "pre_norm", "pool", "position_embedding", "position_place")
        external.lacks("timm", fixed | {name: getattr(spec, name) for name in others})
    arguments: dict[str, Any] = {
        **size_arguments(model),
        "qkv_bias": spec.qkv_bias == "all",
        "mlp_ratio": ratio(spec.mlp_dim * (2 if layout is _GATED else 1), spec.width),
        "reg_tokens": spec.registers,
        "fc_norm": spec.final_norm == "features",
        "act_layer": "silu"
        if spec.mlp == "swiglu"
        else next(theirs for theirs, ours in _GELUS.items() if ours == spec.gelu),
    }
    # Arguments that older versions do not know, where a model needs them.
    for argument, value, usual in (
        ("pre_norm", spec.pre_norm, False),
        ("final_norm", spec.final_norm != "none", True),
        ("pool_include_prefix", spec.pool_prefix, False),
    ):
        arguments |= {} if value == usual else {argument: value}
    if spec.pool == "map" and spec.registers:  # which older ones, such as 1.0.9, include silently
        arguments["pool_include_prefix"] = spec.pool_prefix
    if layout in _RELATIVE:
        architecture, arguments = _relative_arguments(spec, layout, arguments)
    # All fields of an architecture are overridden by model_args.
    config = config_of(str(architecture), model, arguments)
    if spec.distillation_token:
        config["pretrained_cfg"]["classifier"] = ["head", "head_dist"]
    return config | {"num_features": spec.width, "global_pool": POOLS[spec.pool]}


def size_arguments(model: ModelToWrite) -> dict[str, Any]:
    """Arguments that all of timm's ViTs have by the same names."""
    spec: ViTSpec = model.spec
    return {
        "img_size": list(model.preprocess.image_size),
        "patch_size": spec.patch_size,
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.num_heads,
        "class_token": spec.has_class_token,
        "no_embed_class": spec.registers > 0,
        "global_pool": POOLS[spec.pool],
        "init_values": spec.layer_scale or None,
    }


def config_of(
    architecture: str, model: ModelToWrite, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Entries of config.json that all of timm's models have."""
    return {
        "architecture": architecture,
        "num_classes": model.num_classes,
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": pretrained_cfg(model.num_classes, model.preprocess),
        **({"label_names": list(model.class_names)} if model.class_names else {}),
    }


def _relative_arguments(
    spec: ViTSpec, layout: Layout, arguments: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(architecture, model_args) of a ViT with relative positions, from those of a plain one."""
    beit = layout is _BEIT
    keys = ["img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"]
    keys += ["init_values", "global_pool"]
    keys += [] if beit else ["qkv_bias", "class_token", "fc_norm"]
    held = {
        "gelu": ("exact",), "mlp": ("mlp",), "norm": ("layer",), "registers": (0,),
        "pre_norm": (False,), "pool": ("cls", "avg"), "final_norm": ("tokens", "features"),
        "has_class_token": (True,) if beit else (True, False),
    }  # fmt: skip
    if others := {x: getattr(spec, x) for x, its in held.items() if getattr(spec, x) not in its}:
        external.lacks(layout.title, others)
    kept = {name: arguments[name] for name in keys}
    if beit:
        return "beit_base_patch16_224", kept | {"use_fc_norm": spec.final_norm == "features"}
    kept |= {"rel_pos_dim": spec.position_hidden, "shared_rel_pos": layout is _SHARED_RELPOS}
    branch = layout is _RELPOS_NORM_BRANCH
    name = "vit_relpos_base_patch16_rpn_224" if branch else "vit_relpos_base_patch16_224"
    return name, kept


def pretrained_cfg(num_classes: int, about: models.Preprocess) -> dict[str, Any]:
    """The section of config.json about images and the head."""
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


def ratio(mlp_dim: int, width: int) -> float:
    """The factor that timm multiplies the width by and cuts to an integer."""
    exact = mlp_dim / width
    return exact if int(width * exact) == mlp_dim else (mlp_dim + 0.5) / width


def _architecture(spec: Any, known: Mapping[str, str], *fields: str) -> str:
    sizes = {field: getattr(spec, field) for field in fields}
    same = (its for name, its in known.items() if _has(models.spec(name), sizes))
    if (architecture := next(same, None)) is None:
        external.lacks("timm", sizes, f"It has {', '.join(known)}.")
    return architecture


def _has(spec: Any, fields: Mapping[str, Any]) -> bool:
    return all(getattr(spec, name) == value for name, value in fields.items())


def _cnn_config(model: ModelToWrite) -> dict[str, Any]:
    spec: BiTSpec | EfficientNetSpec = model.spec
    arguments: dict[str, Any] = {}
    if isinstance(spec, BiTSpec):
        architecture = _architecture(spec, _BITS, "units", "root_width")
        layers = {"first_conv": "stem.conv", "classifier": "head.fc"}
    else:
        architecture = _architecture(spec, _EFFICIENTNETS, "units", "channels", "map_channels")
        architecture = ("tf_" if spec.padding == "same" else "") + architecture
        layers = {"first_conv": "conv_stem", "classifier": "classifier"}
        if spec.batch_norm_epsilon != _EPSILONS[spec.padding]:
            arguments = {"bn_eps": spec.batch_norm_epsilon}
    config = config_of(architecture, model, arguments)
    config["pretrained_cfg"] |= {"fixed_input_size": False} | layers
    return config | {"num_features": spec.map_channels, "global_pool": "avg"}


def _hybrid_config(model: ModelToWrite) -> dict[str, Any]:
    spec: HybridSpec = model.spec
    name = _architecture(spec, _HYBRIDS, "units", "map_patch_size", "root_width")
    config = _vit_config(model)
    config["architecture"] = name
    config["model_args"]["patch_size"] = spec.map_patch_size
    first = "stem.conv" if spec.units else "conv"
    config["pretrained_cfg"]["first_conv"] = f"patch_embed.backbone.{first}"
    return config


def _packed(tensors: Tensors, model: ModelToWrite) -> Tensors:
    """Adds the class token's position to it where registers are: there, none of them has one."""
    folds = getattr(model.spec, "registers", 0) and model.spec.has_class_token
    if not folds or "pos_embed" not in tensors:
        return tensors
    token, table = tensors["cls_token"].read(), tensors["pos_embed"].read()
    folded = {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:]}
    return {**tensors, **{name: from_array(x) for name, x in folded.items()}}


def _layout_for(spec: Any) -> Layout:
    if isinstance(spec, EfficientNetSpec):
        return _EFFICIENTNET
    if isinstance(spec, BiTSpec):
        return _BIT
    if isinstance(spec, HybridSpec):
        return _HYBRID if spec.units else _HYBRID_OF_ROOT
    if spec.distillation_token:
        return _DISTILLED
    layouts = (*_RELATIVE, _GATED_RMS, *VITS, _NORM_BRANCH)
    return next((its for its in layouts if _has(spec, its.computes)), VIT)


FORMAT = Format(
    destination="timm",
    reads=_read,
    holds=lambda spec, _: (
        type(spec) in (ViTSpec, BiTSpec, EfficientNetSpec)
        or (type(spec) is HybridSpec and not spec.distillation_token)
    ),
    layout_for=_layout_for,
    documents=_documents,
    packed=_packed,
    states=(*_OF_ARCHITECTURE, *_OF_ARGUMENTS),
    prepares=lambda about: preprocess(
        {"pretrained_cfg": pretrained_cfg(0, about)}, about.image_size
    ),
)
