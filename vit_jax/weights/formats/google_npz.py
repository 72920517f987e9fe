"""Google's .npz files: the released ones of ViT, AugReg and BiT, and those of big_vision.

The released files number the parts of a block in their order; vision_transformer's later models
count each kind by itself. The released files have a position for the class token, big_vision's have
none, which equals zeros; and where positions are fixed there is no array of them. Names of hybrids
are those of github.com/google-research/vision_transformer, names of BiT those that
github.com/google-research/big_transfer reads.
"""

import re
from typing import Any

from vit_jax import models
from vit_jax.models.bit import BiTSpec
from vit_jax.models.hybrid import HybridSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import Documents, ExternalWeights, Format, ModelToWrite
from vit_jax.weights.files import listed
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.match import best
from vit_jax.weights.tables import FLAX, Layout, rules

# A name that is optional in one file is optional in all, so one table describes each.
_PATCHES = "patches : embedding"
_PATCHES_OF_HYBRIDS = """
patches/resnet/root/conv         : conv_root
patches/resnet/root/norm         : gn_root
patches/resnet/%/conv[1 2 3]     : block%/unit{}/conv[1 2 3]
patches/resnet/%/projection      : block%/unit{}/conv_proj
patches/resnet/%/norm[1 2 3]     : block%/unit{}/gn[1 2 3]
patches/resnet/%/projection_norm : block%/unit{}/gn_proj
patches/projection               : embedding
"""
_AROUND = """
cls        : cls : 1 1 *
norm       : Transformer/encoder_norm
pre_logits : pre_logits
head       : head
"""
_POSITIONS = "positions/embedding : Transformer/posembed_input/pos_embedding : 1 *"
_BLOCKS = """
norm1         : Transformer/BLOCK/LayerNorm_0
attention/qkv : Transformer/BLOCK/MultiHeadDotProductAttention_0/[query key value]
attention/out : Transformer/BLOCK/MultiHeadDotProductAttention_0/out
norm2         : Transformer/BLOCK/LayerNorm_1
mlp/fc[1 2]   : Transformer/BLOCK/MlpBlock_0/Dense_[0 1]
"""
_LAYER_BY_LAYER = _BLOCKS.replace("BLOCK", "encoderblock_{}")
_STACKED = _BLOCKS.replace("BLOCK", "encoderblock")
_OLD = (
    _LAYER_BY_LAYER.replace("Attention_0", "Attention_1")
    .replace("LayerNorm_1", "LayerNorm_2")
    .replace("MlpBlock_0", "MlpBlock_3")
)
_POOLING = """
pooling/probe       : MAPHead_0/probe : 1 1 *
pooling/query/kernel : MAPHead_0/MultiHeadDotProductAttention_0/query/kernel : D h k
pooling/query/bias  : MAPHead_0/MultiHeadDotProductAttention_0/query/bias : h k
pooling/out         : MAPHead_0/MultiHeadDotProductAttention_0/out
pooling/key_value   : MAPHead_0/MultiHeadDotProductAttention_0/[key value]
pooling/norm        : MAPHead_0/LayerNorm_0
pooling/mlp/fc[1 2] : MAPHead_0/MlpBlock_0/Dense_[0 1]
"""
_BIT_TABLE = """
resnet/root/conv    : resnet/root_block/standardized_conv2d
resnet/%/conv[1 2 3] : resnet/block%/unit{:02}/[a b c]/standardized_conv2d
resnet/%/projection : resnet/block%/unit{:02}/a/proj/standardized_conv2d
resnet/%/norm[1 2 3] : resnet/block%/unit{:02}/[a b c]/group_norm
norm                : resnet/group_norm
head/kernel         : resnet/head/conv2d/kernel : 1 1 *
head/bias           : resnet/head/conv2d/bias
"""
_OF_TEXTS = r"params/(t|b|txt/.*)"  # in SigLIP, LiT and CLIPPO


def _layout(title: str, *tables: str, **computes: Any) -> Layout:
    """`computes` are fields that its readers imply; the arrays do not show them."""
    return Layout(
        title=title,
        rules=rules(*tables, leaves=FLAX, first=1),
        prefixes=("", "params/", "target/", "opt/target/", "optimizer/target/", "params/img/"),
        # Additional arrays of a full training state.
        ignored=(
            r"(opt|opt_state|optimizer|extra|state|chrono|params/(t|b|txt))(/.*)?",
            "step",
            "measurements/.*",
        ),
        computes={"gelu": "tanh", "norm_epsilon": 1e-6} | computes,
        needed=("qkv_bias",),
    )


def _hybrid(title: str, blocks: str) -> Layout:
    return _layout(
        title,
        *(_PATCHES_OF_HYBRIDS, _AROUND, _POSITIONS, blocks),
        weight_epsilon=1e-5,
        weight_epsilon_of="deviation",
        group_norm_epsilon=1e-6,
    )


def _big_vision(title: str, blocks: str) -> tuple[Layout, Layout]:
    """Layouts with positions, and without any: its models then have fixed ones."""
    tables = (_PATCHES, _AROUND, blocks, _POOLING)
    return (
        _layout(title, *tables, "positions/embedding : pos_embedding : 1 *"),
        _layout(f"{title}, positions fixed", *tables, position_embedding="sincos_2d"),
    )


_RELEASED = _layout("Google's .npz as released", _PATCHES, _AROUND, _POSITIONS, _OLD)
BIG_VISION, _BIG_VISION_FIXED = _big_vision("big_vision's .npz, layer by layer", _LAYER_BY_LAYER)
_STACKS, _STACKS_FIXED = _big_vision("big_vision's .npz, layers stacked", _STACKED)
_HYBRID = _hybrid("Google's .npz of hybrids", _OLD)
_BIT = Layout(
    title="Google's .npz of BiT",
    rules=rules(_BIT_TABLE, leaves=FLAX | {"scale": "/gamma", "bias": "/beta"}, first=1),
    computes={"weight_epsilon": 1e-10, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5},
)
_LAYOUTS = (
    _RELEASED,
    _layout(
        "Google's .npz with the names of today's code",
        *(_PATCHES, _AROUND, _POSITIONS, _LAYER_BY_LAYER),
    ),
    BIG_VISION,
    _STACKS,
    _BIG_VISION_FIXED,
    _STACKS_FIXED,
    _HYBRID,
    _hybrid("Google's .npz of hybrids with the names of today's code", _LAYER_BY_LAYER),
    _BIT,
)


def _read(opened: Opened) -> ExternalWeights:
    """The model; the file states nothing about images, so whole images are used."""
    match = best(_LAYOUTS, opened.tensors)
    # The class token of the released models has a position, that of big_vision's has none.
    released = not match.layout.title.startswith("big_vision")
    match, size = external.with_image_size(opened, match, class_position=released)
    left = [name for name in opened.tensors if re.fullmatch(_OF_TEXTS, name)]
    notes = (f"left out, as of texts or beside them: {listed(left)}.",) if left else ()
    return external.external_weights(match, _preprocess(size), assumed=("preprocess",), notes=notes)


def _preprocess(size: tuple[int, int]) -> models.Preprocess:
    return models.Preprocess(size, size)


def layout_for(spec: ViTSpec | BiTSpec) -> Layout:
    """The layout that a model is written in; for ViTs the released one where possible."""
    if isinstance(spec, BiTSpec):
        return _BIT
    if isinstance(spec, HybridSpec):
        return _HYBRID
    return _RELEASED if spec.pool == "cls" else BIG_VISION


def _documents(model: ModelToWrite) -> Documents:
    """No documents: the format has none. UserError for images that no square of patches covers."""
    spec, (height, width) = model.spec, model.preprocess.image_size
    if height != width or (getattr(spec, "crop_to_patches", False) and height % spec.patch_size):
        cure = "Images are squares of whole patches: give --image_size."
        external.lacks("Google's .npz", {"image_size": f"{height} x {width}"}, cure)
    return {}


FORMAT = Format(
    destination="google_npz",
    reads=_read,
    holds=lambda spec, _: type(spec) in (ViTSpec, HybridSpec, BiTSpec),
    layout_for=layout_for,
    documents=_documents,
    prepares=lambda about: _preprocess(about.image_size),
)
