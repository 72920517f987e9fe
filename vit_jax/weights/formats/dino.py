"""Hugging Face's Dinov2, Dinov2WithRegisters and DINOv3ViTModel, in and out.

Dinov2's classifier sees the class token and the mean of the patches side by side; DINOv3 has none.
Dinov2's SwiGLU has both dense layers of the gate in one array, the SiLU's half first. Parts of
DINOv3 that only act in training are ignored.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.models.vit import STYLES, ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import Documents, ExternalWeights, Format, ModelToWrite
from vit_jax.weights.files import Tensors, from_array
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface, huggingface_processors
from vit_jax.weights.match import best
from vit_jax.weights.tables import OURS, Layout, Pack, rules

_NEEDED = ("cls", "scale1", "scale2")  # of the optional parts
# A parameter of masked pre-training, not of the model.
MASK_TOKEN, _MASK_TOKEN_PATTERN = "embeddings.mask_token", r"embeddings\.mask_token"
_TOKENS_TABLE = """
cls       : embeddings.cls_token : 1 1 *
registers : embeddings.register_tokens : 1 *
"""
_NORMS_TABLE = """
norm[1 2]        : LAYERS.{}.norm[1 2]
scale[1 2]/scale : LAYERS.{}.layer_scale[1 2].lambda1
"""

# --- Dinov2

REGISTERS = "dinov2_with_registers"  # a model_type of config.json
# Defaults of transformers' configs.
CONFIG = {**huggingface.VIT_CONFIG, "layer_norm_eps": 1e-6, "layerscale_value": 1.0}
del CONFIG["pooler_act"]
PACK = Pack("mlp.weights_in.", ("mlp.gate.", "mlp.up."))
_TABLE = """
attention/qkv : encoder.layer.{}.attention.attention.[query key value]
attention/out : encoder.layer.{}.attention.output.dense
"""
_MLP = "mlp/fc[1 2] : encoder.layer.{}.mlp.fc[1 2]"
_SWIGLU = """
mlp/gate : encoder.layer.{}.mlp.gate
mlp/fc1  : encoder.layer.{}.mlp.up
mlp/fc2  : encoder.layer.{}.mlp.weights_out
"""


def _layout(title: str, mlp: str, *packs: Pack) -> Layout:
    tables = (
        "patches : embeddings.patch_embeddings.projection",
        _TOKENS_TABLE,
        "positions/embedding : embeddings.position_embeddings : 1 *",
        _NORMS_TABLE.replace("LAYERS", "encoder.layer"),
        _TABLE,
        mlp,
        "norm : layernorm\nhead : classifier",
    )
    # Its head takes twice the width.
    own = OURS | {"head/kernel": "2D C"}
    return Layout(
        title,
        tuple(rule for table in tables for rule in rules(table, own=own)),
        prefixes=("", "dinov2.", f"{REGISTERS}."),
        ignored=(_MASK_TOKEN_PATTERN,),
        needed=_NEEDED,
        packs=packs,
    )


_PLAIN = _layout("Hugging Face's Dinov2", _MLP)
_GATED = _layout("Hugging Face's Dinov2 with SwiGLU", _SWIGLU, PACK)


def _behind_gate(hidden: int) -> int:
    """Width after a gate: 2/3 of the hidden width, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _read(opened: Opened) -> ExternalWeights:
    kind = opened.entries["model_type"]
    config = huggingface.with_defaults(opened, CONFIG)
    gated = any(PACK.whole in name for name in opened.tensors)
    match = best([_GATED if gated else _PLAIN], opened.tensors)
    sizes = match.sizes
    # A last row of pixels that does not fill a patch is left out.
    image_size = external.side("image_size", config["image_size"])
    side = image_size // sizes["P"] * sizes["P"]
    if (side // sizes["P"]) ** 2 + 1 != sizes["N"]:
        external.refuse({"image_size": image_size}, f"is not of {sizes['N']} positions")
    huggingface.check_sizes(opened, match)
    preprocess = huggingface_processors.read(opened, (side, side), any_size=True)
    grid = (x // sizes["P"] for x in preprocess.image_size)
    return external.external_weights(
        external.with_heads(opened, match, config["num_attention_heads"]),
        preprocess,
        fields={
            **huggingface.fields(config, match),
            "pool": "cls_avg" if match.has("head") else "cls",
            "mlp": "swiglu" if gated else "mlp",
            "registers": sizes.get("R", 0),
            "layer_scale": external.positive(config, "layerscale_value", 1.0),
        },
        class_names=huggingface.class_names(config, match),
        assumed=huggingface.assumed(opened),
        positions_for=None if set(grid) == {side // sizes["P"]} else (side, side),
        position_resize="bicubic_antialias" if kind == REGISTERS else "bicubic_torch",
    )


def _holds(spec: Any, num_classes: int) -> bool:
    return (
        type(spec) is ViTSpec
        and spec.pool == ("cls_avg" if num_classes else "cls")
        and spec.position_embedding == "learned_1d"
        and spec.layer_scale > 0
        and spec.mlp in ("mlp", "swiglu")
        and _mlp_ratio(spec) is not None
    )


def _mlp_ratio(spec: ViTSpec) -> int | None:
    """mlp_ratio of config.json, a whole number; None if no such number gives this MLP."""
    for ratio in range(1, 2 * spec.mlp_dim // spec.width + 2):
        hidden = ratio * spec.width
        if spec.mlp_dim == (_behind_gate(hidden) if spec.mlp == "swiglu" else hidden):
            return ratio
    return None


def _packed(tensors: Tensors, model: ModelToWrite) -> Tensors:
    """Names with a prefix in a classifier; a model with registers has to have a mask token."""
    spec = model.spec
    mask = {MASK_TOKEN: from_array(np.zeros((1, spec.width), np.float32))} if spec.registers else {}
    return huggingface.with_prefix(f"{_type(spec)}.", {**mask, **tensors}, model.num_classes)


def _type(spec: ViTSpec) -> str:
    return REGISTERS if spec.registers else "dinov2"


def _documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    height, width = model.preprocess.image_size
    if height != width:
        external.lacks("Hugging Face's Dinov2", {"image_size": f"{height} x {width}"})
    kind = "Dinov2WithRegisters" if spec.registers else "Dinov2"
    suffix = "ForImageClassification" if model.num_classes else "Model"
    config = huggingface.vit_config(model, f"{kind}{suffix}", _type(spec)) | {
        "mlp_ratio": _mlp_ratio(spec),
        "use_swiglu_ffn": spec.mlp == "swiglu",
        "layerscale_value": spec.layer_scale,
        "qkv_bias": spec.qkv_bias == "all",
        "use_mask_token": False,
    }
    if spec.registers:
        config["num_register_tokens"] = spec.registers
    return huggingface.documents(config, model)


DINOV2 = Format(
    destination="huggingface",
    model_types=("dinov2", REGISTERS),
    needs_type=True,
    reads=_read,
    holds=_holds,
    layout_for=lambda spec: _GATED if spec.mlp == "swiglu" else _PLAIN,
    documents=_documents,
    packed=_packed,
    states=("pool", "mlp", "registers"),
)

# --- DINOv3

V3_TYPE = "dinov3_vit"  # model_type of config.json
V3_REGISTERS = "embeddings.register_tokens"
# Values of qkv_bias, by whether query, key and value have biases.
QKV_BIASES = {
    (True, True, True): "all",
    (True, False, True): "query_value",
    (False, False, False): "none",
}
# Defaults of transformers' DINOv3ViTConfig.
V3_CONFIG: dict[str, Any] = {
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rope_theta": ViTSpec.rotary_base,
    "image_size": 224,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "layerscale_value": 1.0,
    "use_gated_mlp": False,
}
_V3_TABLE = """
attention/qkv              : LAYERS.{}.attention.[q_proj k_proj v_proj]
attention/[query value]_bias : LAYERS.{}.attention.[q_proj v_proj].bias
attention/out              : LAYERS.{}.attention.o_proj
mlp/gate                   : LAYERS.{}.mlp.gate_proj
mlp/fc1                    : LAYERS.{}.mlp.up_proj
mlp/fc2                    : LAYERS.{}.mlp.down_proj
norm                       : norm
"""


@functools.cache
def v3_layout(qkv_bias: str, dense_bias: bool, gated: bool) -> Layout:
    """The table for three fields of the model."""
    tables = ("patches : embeddings.patch_embeddings", _TOKENS_TABLE, _NORMS_TABLE, _V3_TABLE)
    absent = (
        *(() if qkv_bias == "all" else ("attention/qkv/bias",)),
        *(() if qkv_bias == "query_value" else ("query_bias", "value_bias")),
        *(() if dense_bias else ("out/bias", "gate/bias", "fc1/bias", "fc2/bias")),
        *(() if gated else ("gate/kernel", "gate/bias")),
    )
    present = rules(*(table.replace("LAYERS", "layer") for table in tables))
    return Layout(
        "Hugging Face's DINOv3",
        tuple(rule for rule in present if not rule.ours.endswith(absent)),
        prefixes=("", "model."),  # of layers, in the state_dict() of transformers 5
        ignored=(_MASK_TOKEN_PATTERN,),
        needed=(*_NEEDED, *(["qkv_bias"] if qkv_bias == "all" else [])),
    )


def _read_v3(opened: Opened) -> ExternalWeights:
    config = huggingface.with_defaults(opened, V3_CONFIG)
    fields = _v3_fields(config)
    layout = v3_layout(fields["qkv_bias"], fields["dense_bias"], fields["mlp"] != "mlp")
    # A model without registers has an empty array of them.
    match = best([layout], {name: x for name, x in opened.tensors.items() if 0 not in x.shape})
    sizes = match.sizes
    huggingface.check_sizes(opened, match)
    match = external.with_heads(opened, match, config["num_attention_heads"])
    fields |= external.vit_sizes(match) | {"registers": sizes.get("R", 0)}
    return external.external_weights(
        match,
        _preprocess(opened, config, sizes["P"]),
        fields=fields,
        name=f"ViT-{_v3_size_name(fields)}/{sizes['P']}-dinov3",
        assumed=huggingface.assumed(opened),
    )


def _v3_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    has_bias = tuple(external.flag(config, f"{name}_bias") for name in ("query", "key", "value"))
    dense_bias = external.flag(config, "proj_bias")
    if has_bias not in QKV_BIASES or external.flag(config, "mlp_bias") != dense_bias:
        external.refuse({key: x for key, x in config.items() if key.endswith("_bias")})
    gated = external.flag(config, "use_gated_mlp")
    gelus = huggingface.GELUS | ({"silu": "silu", "swish": "silu"} if gated else {})
    activation = gelus[external.word(config, "hidden_act", "gelu", gelus)]
    return {
        "qkv_bias": QKV_BIASES[has_bias],
        "dense_bias": dense_bias,
        "mlp": "mlp" if not gated else "swiglu" if activation == "silu" else "geglu",
        "gelu": "exact" if activation == "silu" else activation,
        "rotary_base": external.positive(config, "rope_theta", ViTSpec.rotary_base),
        "layer_scale": external.positive(config, "layerscale_value", 1.0),
        "norm_epsilon": external.positive(config, "layer_norm_eps", 1e-5),
    }


def _v3_size_name(fields: Mapping[str, Any]) -> str:
    """The size's name: "S+" for the fields of ViT-S+; else depth and width, such as "12x512"."""
    for size, own in STYLES["-dinov3"][1].items():
        sizes = ("depth", "width", "mlp_dim", "num_heads")
        same_mlp = fields["mlp"] == own.get("mlp", ViTSpec.mlp)
        if same_mlp and all(fields[name] == own[name] for name in sizes):
            return size
    return f"{fields['depth']}x{fields['width']}"


def _preprocess(opened: Opened, config: Mapping[str, Any], patch: int) -> models.Preprocess:
    """Preparation by preprocessor_config.json, which also gives the size: the model takes any.

    Without that file, the size is config.json's image_size.
    """
    size = external.sides("image_size", config["image_size"])
    if opened.preprocessor is None:
        opened = dataclasses.replace(opened, preprocessor={"size": list(size)})
    about = huggingface_processors.read(opened, size, any_size=True)
    height, width = about.image_size
    if height % patch or width % patch:
        external.refuse({"patch_size": patch}, f"does not tile {height} x {width} pixels")
    return about


def _holds_v3(spec: Any, _: int) -> bool:
    return (
        type(spec) is ViTSpec
        and spec.pool == "cls"
        and spec.position_embedding == "rotary_2d"
        and spec.layer_scale > 0
    )


def _packed_v3(arrays: Tensors, model: ModelToWrite) -> Tensors:
    """Adds the arrays that a DINOv3ViTModel requires: a mask token, and registers, even 0."""
    zeros = np.zeros((1, 1, model.spec.width), np.float32)
    return {MASK_TOKEN: from_array(zeros), V3_REGISTERS: from_array(zeros[:, :0]), **arrays}


def _v3_documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    if model.num_classes:
        cure = "Leave the head out: --head=drop."
        external.lacks("Hugging Face's DINOv3", {"num_classes": model.num_classes}, cure)
    query, key, value = next(has for has, word in QKV_BIASES.items() if word == spec.qkv_bias)
    config = huggingface.vit_config(model, "DINOv3ViTModel", V3_TYPE) | {
        "intermediate_size": spec.mlp_dim,
        "use_gated_mlp": spec.mlp != "mlp",
        "layerscale_value": spec.layer_scale,
        "num_register_tokens": spec.registers,
        "query_bias": query,
        "key_bias": key,
        "value_bias": value,
        "proj_bias": spec.dense_bias,
        "mlp_bias": spec.dense_bias,
        "rope_theta": spec.rotary_base,
        "pos_embed_rescale": None,  # the default is 2; models trained here have none
    }
    if spec.mlp == "swiglu":
        config["hidden_act"] = "silu"
    return huggingface.documents(config, model)


DINOV3 = Format(
    destination="huggingface",
    model_types=(V3_TYPE,),
    needs_type=True,
    reads=_read_v3,
    holds=_holds_v3,
    layout_for=lambda s: v3_layout(s.qkv_bias, s.dense_bias, s.mlp != "mlp"),
    documents=_v3_documents,
    packed=_packed_v3,
    states=("position_embedding", "rotary_base", "mlp", "qkv_bias", "dense_bias", "registers"),
)
