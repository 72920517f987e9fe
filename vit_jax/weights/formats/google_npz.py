"""Google's .npz files: the released ones of ViT, AugReg and BiT, and those of big_vision.

The released files number the parts of a block in their order; vision_transformer's own code renames
them as it reads them, counting each kind by itself, and its later models have these names.

The released files have a position for the class token; in big_vision it has none, which equals one
of zeros; and where positions are fixed, as in its ViT-S/16 of arXiv 2205.01580, there is no array
of them. Neither has LayerScale.

Names of hybrids are those of vit_jax/models_resnet.py and models_vit.py in
github.com/google-research/vision_transformer, names of BiT those that bit_pytorch/models.py in
github.com/google-research/big_transfer reads.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.layout import Layout, ResNetNames, Rule, resnet_rules, rule
from vit_jax.weights.match import best

# Fields that its readers imply; the arrays do not show them.
_FIELDS = {"gelu": "tanh", "norm_epsilon": 1e-6}
_FIELDS_OF_HYBRIDS = {
    "weight_epsilon": 1e-5,
    "weight_epsilon_of": "deviation",
    "group_norm_epsilon": 1e-6,
}
_FIELDS_OF_BIT = {
    "weight_epsilon": 1e-10,
    "weight_epsilon_of": "variance",
    "group_norm_epsilon": 1e-5,
}

# A name that is optional in one file is optional in all, so one table describes each.
_PATCHES = (
    rule("patches/kernel", "embedding/kernel", "P p 3 D"),
    rule("patches/bias", "embedding/bias", "D"),
)
_AROUND = (
    rule("cls", "cls", "1 1 D"),
    rule("norm/scale", "Transformer/encoder_norm/scale", "D"),
    rule("norm/bias", "Transformer/encoder_norm/bias", "D"),
    rule("pre_logits/kernel", "pre_logits/kernel", "D E"),
    rule("pre_logits/bias", "pre_logits/bias", "E"),
    rule("head/kernel", "head/kernel", "D C"),
    rule("head/bias", "head/bias", "C"),
)
_PREFIXES = ("", "params/", "target/", "opt/target/", "optimizer/target/", "params/img/")
# Additional arrays of a full training state.
_IGNORED = (
    r"(opt|opt_state|optimizer|extra|state|chrono|params/t)(/.*)?",
    "step",
    "measurements/.*",
)


def _attention(ours: str, theirs: str, layers: str) -> tuple[Rule, ...]:
    qkv = lambda leaf: " ".join(f"{theirs}/{n}/{leaf}" for n in ("query", "key", "value"))
    return (
        rule(f"{ours}/qkv/kernel", qkv("kernel"), f"{layers} D H K"),
        rule(f"{ours}/qkv/bias", qkv("bias"), f"{layers} H K"),
        rule(f"{ours}/out/kernel", f"{theirs}/out/kernel", f"{layers} H K D"),
        rule(f"{ours}/out/bias", f"{theirs}/out/bias", f"{layers} D"),
    )


def _norm(ours: str, theirs: str, layers: str = "") -> tuple[Rule, ...]:
    return tuple(
        rule(f"{ours}/{leaf}", f"{theirs}/{leaf}", f"{layers} D") for leaf in ("scale", "bias")
    )


def _mlp(ours: str, theirs: str, layers: str = "") -> tuple[Rule, ...]:
    return (
        rule(f"{ours}/fc1/kernel", f"{theirs}/Dense_0/kernel", f"{layers} D M"),
        rule(f"{ours}/fc1/bias", f"{theirs}/Dense_0/bias", f"{layers} M"),
        rule(f"{ours}/fc2/kernel", f"{theirs}/Dense_1/kernel", f"{layers} M D"),
        rule(f"{ours}/fc2/bias", f"{theirs}/Dense_1/bias", f"{layers} D"),
    )


def _blocks(
    under: str, layers: str, *, norm1: str, attention: str, norm2: str, mlp: str
) -> tuple[Rule, ...]:
    return (
        *_norm("norm1", f"{under}/{norm1}", layers),
        *_attention("attention", f"{under}/{attention}", layers),
        *_norm("norm2", f"{under}/{norm2}", layers),
        *_mlp("mlp", f"{under}/{mlp}", layers),
    )


def _map_head() -> tuple[Rule, ...]:
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    rules = [
        rule("pooling/probe", "MAPHead_0/probe", "1 1 D"),
        rule("pooling/query/kernel", f"{attention}/query/kernel", "D H K"),
        rule("pooling/query/bias", f"{attention}/query/bias", "H K"),
        rule("pooling/out/kernel", f"{attention}/out/kernel", "H K D"),
        rule("pooling/out/bias", f"{attention}/out/bias", "D"),
    ]
    for leaf, axes in (("kernel", "D H K"), ("bias", "H K")):
        names = f"{attention}/key/{leaf} {attention}/value/{leaf}"
        rules.append(rule(f"pooling/key_value/{leaf}", names, axes))
    return (
        *rules,
        *_norm("pooling/norm", "MAPHead_0/LayerNorm_0"),
        *_mlp("pooling/mlp", "MAPHead_0/MlpBlock_0"),
    )


_NEW = {
    "norm1": "LayerNorm_0",
    "attention": "MultiHeadDotProductAttention_0",
    "norm2": "LayerNorm_1",
    "mlp": "MlpBlock_0",
}
_OLD = {
    "norm1": "LayerNorm_0",
    "attention": "MultiHeadDotProductAttention_1",
    "norm2": "LayerNorm_2",
    "mlp": "MlpBlock_3",
}


def _of_vision_transformer(parts: Mapping[str, str]) -> tuple[Rule, ...]:
    """All rules except those of patches, by the names of a block's parts."""
    return (
        *_AROUND,
        rule("positions/embedding", "Transformer/posembed_input/pos_embedding", "1 N D"),
        *_blocks("Transformer/encoderblock_{}", "", **parts),
    )


_RESNET_OF_HYBRIDS = ResNetNames(
    root={"root/conv": "conv_root/", "root/norm": "gn_root/"},
    unit={
        **{f"conv{i}": f"conv{i}/" for i in (1, 2, 3)},
        **{f"norm{i}": f"gn{i}/" for i in (1, 2, 3)},
        "projection": "conv_proj/",
        "projection_norm": "gn_proj/",
    },
    folder="block%d/unit{}/",
    first=1,
    leaves={"kernel": "kernel", "scale": "scale", "bias": "bias"},
)
_CONV = "standardized_conv2d/"
_RESNET_OF_BIT = ResNetNames(
    root={"root/conv": f"resnet/root_block/{_CONV}"},
    unit={
        **{f"conv{i + 1}": f"{letter}/{_CONV}" for i, letter in enumerate("abc")},
        **{f"norm{i + 1}": f"{letter}/group_norm/" for i, letter in enumerate("abc")},
        "projection": f"a/proj/{_CONV}",
    },
    folder="resnet/block%d/unit{:02}/",
    first=1,
    leaves={"kernel": "kernel", "scale": "gamma", "bias": "beta"},
)


def _layout(title: str, *rules: Rule, **computes: Any) -> Layout:
    return Layout(
        title=title,
        rules=rules,
        prefixes=_PREFIXES,
        ignored=_IGNORED,
        computes=_FIELDS | computes,
        needed=("qkv_bias",),
    )


def _big_vision(title: str, blocks: str, layers: str) -> tuple[Layout, Layout]:
    """Layouts with positions, and without any: its models then have fixed ones."""
    positions = rule("positions/embedding", "pos_embedding", "1 N D")
    rest = (*_blocks(blocks, layers, **_NEW), *_map_head())
    return (
        _layout(title, *_PATCHES, *_AROUND, positions, *rest),
        _layout(
            f"{title}, positions fixed",
            *(*_PATCHES, *_AROUND, *rest),
            position_embedding="sincos_2d",
        ),
    )


_PATCHES_OF_HYBRIDS = (
    *resnet_rules("patches/resnet", _RESNET_OF_HYBRIDS, pre_activation=False),
    rule("patches/projection/kernel", "embedding/kernel", "P p F D"),
    rule("patches/projection/bias", "embedding/bias", "D"),
)
_RELEASED = _layout("Google's .npz as released", *_PATCHES, *_of_vision_transformer(_OLD))
BIG_VISION, _BIG_VISION_FIXED = _big_vision(
    "big_vision's .npz, layer by layer", "Transformer/encoderblock_{}", ""
)
_STACKED, _STACKED_FIXED = _big_vision(
    "big_vision's .npz, layers stacked", "Transformer/encoderblock", "L"
)
_HYBRID = _layout(
    "Google's .npz of hybrids",
    *(*_PATCHES_OF_HYBRIDS, *_of_vision_transformer(_OLD)),
    **_FIELDS_OF_HYBRIDS,
)
_BIT = Layout(
    title="Google's .npz of BiT",
    rules=(
        *resnet_rules("resnet", _RESNET_OF_BIT, pre_activation=True),
        rule("norm/scale", "resnet/group_norm/gamma", "D"),
        rule("norm/bias", "resnet/group_norm/beta", "D"),
        rule("head/kernel", "resnet/head/conv2d/kernel", "1 1 D C"),
        rule("head/bias", "resnet/head/conv2d/bias", "C"),
    ),
    computes=_FIELDS_OF_BIT,
)
_LAYOUTS = (
    _RELEASED,
    _layout(
        "Google's .npz with the names of today's code", *(*_PATCHES, *_of_vision_transformer(_NEW))
    ),
    BIG_VISION,
    _STACKED,
    _BIG_VISION_FIXED,
    _STACKED_FIXED,
    _HYBRID,
    _layout(
        "Google's .npz of hybrids with the names of today's code",
        *(*_PATCHES_OF_HYBRIDS, *_of_vision_transformer(_NEW)),
        **_FIELDS_OF_HYBRIDS,
    ),
    _BIT,
)


def _read(opened: Opened, given: Given) -> ExternalWeights:
    """The model; the file states nothing about images, so whole images are used."""
    match = best(_LAYOUTS, opened.tensors)
    # The class token of the released models has a position, that of big_vision's has none.
    released = match.layout not in (BIG_VISION, _STACKED, _BIG_VISION_FIXED, _STACKED_FIXED)
    match, pads, size = external.with_image_size(opened, match, given, class_position=released)
    preprocess = models.Preprocess(size, size)
    return external.external_weights(
        match, preprocess, pads_class_position=pads, assumed=("preprocess",)
    )


def layout_for(spec: ViTSpec | BiTSpec) -> Layout:
    """The layout that a model is written in; for ViTs the released one where possible."""
    if isinstance(spec, BiTSpec):
        return _BIT
    if isinstance(spec, HybridSpec):
        return _HYBRID
    return _RELEASED if spec.pool == "cls" else BIG_VISION


def _documents(spec: Any, _: int, __: ClassNames, about: models.Preprocess) -> Documents:
    """No documents: the format has none. UserError for images that are no square of patches."""
    height, width = about.image_size
    if height != width or (getattr(spec, "crop_to_patches", False) and height % spec.patch_size):
        raise UserError(
            f"Google's .npz cannot say that images are {height} x {width} pixels: it is for "
            "squares of whole patches. Give --image_size, or write --to=huggingface or timm."
        )
    return {}


FORMAT = Format(
    destination="google_npz",
    reads=_read,
    holds=lambda spec, _: type(spec) in (ViTSpec, HybridSpec, BiTSpec),
    layout_for=layout_for,
    documents=_documents,
    hint="Write --to=huggingface or timm.",
)
