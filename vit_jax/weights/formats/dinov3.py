"""Hugging Face's DINOv3ViTModel, in and out; it has no classifier.

Parts that only act in training are ignored: dropout of attention, stochastic depth, and the random
shifts, stretches and scales of patches' coordinates, which do not exist here (nn/posemb.py).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import STYLES, ViTSpec
from vit_jax.nn.posemb import ROTARY_BASE
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors, of_array
from vit_jax.weights.formats import dinov2, huggingface, huggingface_processors
from vit_jax.weights.layout import Layout, rule, torch_linear, torch_norm
from vit_jax.weights.match import best

TYPE = "dinov3_vit"  # model_type of config.json
# transformers 5 still writes the first into files, but calls its modules by the second.
LAYERS = ("layer", "model.layer")
REGISTERS = "embeddings.register_tokens"
# Values of qkv_bias, by whether query, key and value have biases.
QKV_BIASES = {
    (True, True, True): "all",
    (True, False, True): "query_value",
    (False, False, False): "none",
}
# Defaults of transformers' DINOv3ViTConfig.
CONFIG: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rope_theta": ROTARY_BASE,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "layerscale_value": 1.0,
    "use_gated_mlp": False,
    "num_register_tokens": 0,
}


@functools.cache
def _layout(layers: str, qkv_bias: str, dense_bias: bool, gated: bool) -> Layout:
    """The table for one of LAYERS and three fields of the model."""
    inside = lambda *names: " ".join(f"{layers}.{{}}.{name}" for name in names)
    query, key, value = (f"attention.{name}_proj" for name in "qkv")
    wide, narrow = ("M", "D") if dense_bias else (None, None)
    apart = [("query", query), ("value", value)] if qkv_bias == "query_value" else []
    in_one = "(H K)" if qkv_bias == "all" else None
    rules = (
        *torch_linear("patches", "embeddings.patch_embeddings", "D 3 P p", "D"),
        *dinov2.tokens(),
        *dinov2.norms_and_scales(layers),
        *torch_linear("attention/qkv", inside(query, key, value), "(H K) D", in_one),
        *(rule(f"attention/{a}_bias", f"{inside(name)}.bias", "(H K)") for a, name in apart),
        *torch_linear("attention/out", inside("attention.o_proj"), "D (H K)", narrow),
        *(torch_linear("mlp/gate", inside("mlp.gate_proj"), "M D", wide) if gated else ()),
        *torch_linear("mlp/fc1", inside("mlp.up_proj"), "M D", wide),
        *torch_linear("mlp/fc2", inside("mlp.down_proj"), "D M", narrow),
        *torch_norm("norm", "norm"),
    )
    return Layout(
        "Hugging Face's DINOv3",
        rules,
        ignored=(dinov2.MASK_TOKEN_PATTERN,),
        needed=(*dinov2.NEEDED, *(["qkv_bias"] if in_one else [])),
    )


def _read(opened: Opened, given: Given) -> ExternalWeights:
    """The model, which takes images of any size."""
    config = huggingface.with_defaults(opened, CONFIG)
    fields = _fields(config)
    layers = LAYERS[any(name.startswith(f"{LAYERS[1]}.") for name in opened.tensors)]
    layout = _layout(layers, fields["qkv_bias"], fields["dense_bias"], fields["mlp"] != "mlp")
    # A model without registers has an empty array of them.
    match = best([layout], {name: x for name, x in opened.tensors.items() if 0 not in x.shape})
    sizes, registers = match.sizes, match.sizes.get("R", 0)
    stated = {"intermediate_size": sizes["M"], "num_register_tokens": registers}
    config_json.check_sizes(opened, config_json.token_sizes(sizes) | stated, CONFIG)
    match = external.with_heads(opened, match, given, config["num_attention_heads"])
    fields |= external.vit_sizes(match) | {"registers": registers}
    return external.external_weights(
        match,
        _preprocess(opened, config, sizes["P"]),
        fields=fields,
        name=f"ViT-{_size_name(fields)}/{sizes['P']}-dinov3",
        assumed=huggingface.assumed(opened),
    )


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields in a complete config.json. UserError for those not computed here."""
    has_bias = tuple(
        config_json.flag(config, f"{name}_bias", False) for name in ("query", "key", "value")
    )
    if has_bias not in QKV_BIASES:
        query, key, value = has_bias
        raise UserError(
            f"config.json: query_bias={query}, key_bias={key}, value_bias={value}; supported are "
            "all, none, and all but the key's."
        )
    dense_bias = config_json.flag(config, "proj_bias", False)
    if config_json.flag(config, "mlp_bias", False) != dense_bias:
        raise UserError(
            f"config.json: proj_bias={dense_bias}, mlp_bias={not dense_bias}; supported are both "
            "or none."
        )
    theta = config_json.positive(config, "rope_theta", ROTARY_BASE)
    if theta != ROTARY_BASE:
        raise UserError(f"config.json: rope_theta={theta:g}; only {ROTARY_BASE:g} is supported.")
    gated = config_json.flag(config, "use_gated_mlp", False)
    gelus = huggingface.GELUS | ({"silu": "silu", "swish": "silu"} if gated else {})
    activation = gelus[config_json.word(config, "hidden_act", "gelu", gelus)]
    return {
        "qkv_bias": QKV_BIASES[has_bias],
        "dense_bias": dense_bias,
        "mlp": "mlp" if not gated else "swiglu" if activation == "silu" else "geglu",
        "gelu": "exact" if activation == "silu" else activation,
        "layer_scale": config_json.positive(config, "layerscale_value", 1.0),
        "norm_epsilon": config_json.positive(config, "layer_norm_eps", 1e-5),
    }


def _size_name(fields: Mapping[str, Any]) -> str:
    """The size's name: "S+" for the fields of ViT-S+; else depth and width, such as "12x512"."""
    for size, own in STYLES["-dinov3"].items():
        sizes = ("depth", "width", "mlp_dim", "num_heads")
        same_mlp = fields["mlp"] == own.get("mlp", ViTSpec.mlp)
        if same_mlp and all(fields[name] == own[name] for name in sizes):
            return size
    return f"{fields['depth']}x{fields['width']}"


def _preprocess(opened: Opened, config: Mapping[str, Any], patch: int) -> models.Preprocess:
    """Preparation by preprocessor_config.json, which also gives the size: the model takes any.

    Without that file, the size is config.json's image_size.
    """
    size = config_json.sides("image_size", config["image_size"])
    if opened.preprocessor is None:
        opened = dataclasses.replace(opened, preprocessor={"size": list(size)})
    about = huggingface_processors.read(opened, size, any_size=True)
    height, width = about.image_size
    if height % patch or width % patch:
        raise UserError(
            f"{opened.path}: its images are {height} x {width} pixels, which does not divide into "
            f"patches of {patch}: change the size in preprocessor_config.json, or without it "
            "image_size in config.json."
        )
    return about


# --- writing


def _holds(spec: Any, _: int) -> bool:
    """Whether a model is a DINOv3, with a head or without."""
    plain = ("pool", "position_at", "parallel", "qk_norm", "norm", "pre_logits")
    return (
        type(spec) is ViTSpec
        and spec.position_embedding == "rotary_2d"
        and spec.layer_scale > 0
        and all(getattr(spec, name) == getattr(ViTSpec, name) for name in plain)
    )


def _packed(arrays: Tensors, spec: ViTSpec, _: int) -> Tensors:
    """Adds the arrays that a DINOv3ViTModel requires: a mask token, and registers, even 0."""
    zeros = lambda number: of_array(np.zeros((1, number, spec.width), np.float32))
    return {dinov2.MASK_TOKEN: zeros(1), REGISTERS: zeros(0), **arrays}


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    if num_classes:
        raise UserError(
            "Hugging Face's DINOv3 has no head, this model has: leave it out (--head=drop), or "
            "keep it in a checkpoint (vit-jax convert --to=checkpoint)."
        )
    query, key, value = next(has for has, word in QKV_BIASES.items() if word == spec.qkv_bias)
    config = huggingface.vit_config(
        spec, "DINOv3ViTModel", TYPE, about.image_size, num_classes, names
    ) | {
        "intermediate_size": spec.mlp_dim,
        "use_gated_mlp": spec.mlp != "mlp",
        "layerscale_value": spec.layer_scale,
        "num_register_tokens": spec.registers,
        "query_bias": query,
        "key_bias": key,
        "value_bias": value,
        "proj_bias": spec.dense_bias,
        "mlp_bias": spec.dense_bias,
        "rope_theta": ROTARY_BASE,
        "pos_embed_rescale": None,  # the default is 2; models trained here have none
    }
    if spec.mlp == "swiglu":
        config["hidden_act"] = "silu"
    return huggingface.documents(config, about)


FORMAT = Format(
    destination="huggingface",
    model_types=(TYPE,),
    needs_type=True,
    reads=_read,
    holds=_holds,
    layout_for=lambda s: _layout(LAYERS[0], s.qkv_bias, s.dense_bias, s.mlp != "mlp"),
    documents=_documents,
    packed=_packed,
    hint="Write --to=checkpoint.",
    is_plain=False,
)
