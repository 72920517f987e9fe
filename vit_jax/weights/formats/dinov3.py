"""Hugging Face's DINOv3ViTModel, in and out; it has no classifier.

What acts in its training alone is not taken over: dropout of attention, stochastic depth, and the
random shifts, stretches and scales of patches' coordinates, which are not there (nn/posemb.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.models.vit_names import STYLES
from vit_jax.nn.posemb import ROTARY_BASE
from vit_jax.weights.external import ExternalWeights
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensor, Tensors, of_array
from vit_jax.weights.formats import config_consistency, dino, huggingface, json_fields
from vit_jax.weights.layout import Layout, rule

TYPE, NO_VIT = "dinov3_vit", "dinov3_convnext"  # model_type of config.json
# transformers 5 still writes files by the first, but calls its modules by the second.
LAYERS = ("layer", "model.layer")
REGISTERS = "embeddings.register_tokens"
# By which of query, key and value have a bias.
QKV_BIASES = {
    (True, True, True): "all",
    (True, False, True): "query_value",
    (False, False, False): "none",
}
# What DINOv3ViTImageProcessor does where preprocessor_config.json does not say otherwise.
_PROCESSOR = {
    "size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@functools.cache
def layout(layers: str, qkv_bias: str, dense_bias: bool, gated: bool) -> Layout:
    """By `layers` of LAYERS and three fields of the model."""
    query, key, value = (f"attention.{name}_proj" for name in "qkv")
    bias_of = lambda name: f"{layers}.{{}}.{name}.bias"
    dense = functools.partial(dino.dense, layers)
    wide, narrow = ("M", "D") if dense_bias else (None, None)
    apart = [("query", query), ("value", value)] if qkv_bias == "query_value" else []
    in_one = "(H K)" if qkv_bias == "all" else None
    rules = (
        rule("patches/kernel", "embeddings.patch_embeddings.weight", "D 3 P p"),
        rule("patches/bias", "embeddings.patch_embeddings.bias", "D"),
        *dino.tokens(),
        *dino.norms_and_scales(layers),
        *dense("attention/qkv", f"{query} {key} {value}", "(H K) D", in_one),
        *(rule(f"attention/{ours}_bias", bias_of(theirs), "(H K)") for ours, theirs in apart),
        *dense("attention/out", "attention.o_proj", "D (H K)", narrow),
        *(dense("mlp/gate", "mlp.gate_proj", "M D", wide) if gated else ()),
        *dense("mlp/fc1", "mlp.up_proj", "M D", wide),
        *dense("mlp/fc2", "mlp.down_proj", "D M", narrow),
        rule("norm/scale", "norm.weight", "D"),
        rule("norm/bias", "norm.bias", "D"),
    )
    return Layout(
        "Hugging Face's DINOv3",
        rules,
        ignored=(dino.MASK_TOKEN_PATTERN,),
        needed=("qkv_bias",) if in_one else (),
    )


def reads(opened: Opened) -> bool:
    """Whether config.json says that it is one. UserError for one of DINOv3's other models."""
    kind = (opened.config or {}).get("model_type")
    if kind == NO_VIT:
        raise UserError(
            f"{opened.path} holds DINOv3's ConvNeXt, which is no ViT; of its models the ViTs can "
            f"be read, those whose config.json says {TYPE!r}."
        )
    return kind == TYPE


def understand(opened: Opened) -> ExternalWeights:
    """The model in a file that is `reads`. UserError as external.understand."""
    fields = _fields(opened.config or {})
    # A model without registers has an array of none.
    tensors = {name: x for name, x in opened.tensors.items() if 0 not in x.shape}
    layers = LAYERS[any(name.startswith(f"{LAYERS[1]}.") for name in tensors)]
    found = dino.matched(opened, _layout_of(fields, layers), tensors)
    config_consistency.check(opened, config_consistency.of_dinov3(found))
    sizes = found.sizes
    fields |= {
        "depth": sizes["L"],
        "width": sizes["D"],
        "mlp_dim": sizes["M"],
        "num_heads": sizes["H"],
        "registers": sizes.get("R", 0),
    }
    name = f"ViT-{_size_name(fields)}/{sizes['P']}-dinov3"
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **fields),
        num_classes=0,
        class_names=None,
        preprocess=_preprocess(opened, sizes["P"]),
        match=found,
        pads_class_position=False,
    )


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields that config.json tells. UserError for what cannot be computed here."""
    has_bias = tuple(
        json_fields.flag(config, f"{name}_bias", name != "key")
        for name in ("query", "key", "value")
    )
    if has_bias not in QKV_BIASES:
        query, key, value = has_bias
        raise UserError(
            f"config.json: query_bias={query}, key_bias={key}, value_bias={value}; supported are "
            "all, none, and all but the key's."
        )
    dense_bias = json_fields.flag(config, "proj_bias", True)
    if json_fields.flag(config, "mlp_bias", True) != dense_bias:
        raise UserError(
            f"config.json: proj_bias={dense_bias}, mlp_bias={not dense_bias}; supported are both "
            "or none."
        )
    theta = json_fields.positive(config, "rope_theta", ROTARY_BASE)
    if theta != ROTARY_BASE:
        raise UserError(f"config.json: rope_theta={theta:g}; only {ROTARY_BASE:g} is supported.")
    gated = json_fields.flag(config, "use_gated_mlp", False)
    gelus = huggingface.GELUS | ({"silu": "silu", "swish": "silu"} if gated else {})
    activation = gelus[json_fields.word(config, "hidden_act", "gelu", gelus)]
    return {
        "qkv_bias": QKV_BIASES[has_bias],
        "dense_bias": dense_bias,
        "mlp": "mlp" if not gated else "swiglu" if activation == "silu" else "geglu",
        "gelu": "exact" if activation == "silu" else activation,
        "layer_scale": json_fields.positive(config, "layerscale_value", 1.0),
        "norm_epsilon": json_fields.positive(config, "layer_norm_eps", 1e-5),
    }


def _layout_of(fields: Mapping[str, Any], layers: str) -> Layout:
    gated = fields["mlp"] != "mlp"
    return layout(layers, fields["qkv_bias"], fields["dense_bias"], gated)


def _size_name(fields: Mapping[str, Any]) -> str:
    """ "S+", if these fields are those of ViT-S+; else by depth and width, as "12x512"."""
    for size, own in STYLES["-dinov3"].items():
        sizes = ("depth", "width", "mlp_dim", "num_heads")
        same_mlp = fields["mlp"] == own.get("mlp", ViTSpec.mlp)
        if same_mlp and all(fields[name] == own[name] for name in sizes):
            return size
    return f"{fields['depth']}x{fields['width']}"


def _preprocess(opened: Opened, patch: int) -> models.Preprocess:
    """As preprocessor_config.json says, of whose size the images are: the model takes any.

    Without it of config.json's image_size.
    """
    document = opened.preprocessor
    if document is None:
        size = json_fields.sides("image_size", (opened.config or {}).get("image_size", 224))
        document = {"size": list(size)}
    told = {key: x for key, x in document.items() if x is not None}
    found = huggingface.preprocess_of_any_size(_PROCESSOR | told)
    height, width = found.image_size
    if height % patch or width % patch:
        raise UserError(
            f"{opened.path}: its images are {height} x {width} pixels, which does not divide into "
            f"patches of {patch}: change the size in preprocessor_config.json, or without it "
            "image_size in config.json."
        )
    return found


# --- writing


def fits(spec: Any, num_classes: int) -> bool:
    """Whether a model is a DINOv3, with a head or without."""
    plain = ("pool", "position_at", "parallel", "qk_norm", "norm", "pre_logits")
    return (
        type(spec) is ViTSpec
        and spec.position_embedding == "rotary_2d"
        and spec.layer_scale > 0
        and all(getattr(spec, name) == getattr(ViTSpec, name) for name in plain)
    )


def layout_for(spec: ViTSpec) -> Layout:
    """That of what `fits`."""
    return layout(LAYERS[0], spec.qkv_bias, spec.dense_bias, spec.mlp != "mlp")


def completed(arrays: Tensors, spec: ViTSpec, num_classes: int) -> dict[str, Tensor]:
    """With what every DINOv3ViTModel has to have: a mask token, and registers, if only 0."""
    zeros = lambda number: of_array(np.zeros((1, number, spec.width), np.float32))
    return {dino.MASK_TOKEN: zeros(1), REGISTERS: zeros(0), **arrays}


def documents(
    spec: ViTSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    """config.json and preprocessor_config.json. UserError for a model with a head."""
    if num_classes:
        raise UserError(
            "Hugging Face's DINOv3 has no head, this model has: leave it out (--head=drop), or "
            "keep it in a checkpoint (python -m vit_jax.convert --to=checkpoint)."
        )
    query, key, value = next(has for has, word in QKV_BIASES.items() if word == spec.qkv_bias)
    gelu = "gelu" if spec.gelu == "exact" else "gelu_pytorch_tanh"
    height, width = about.image_size
    config: dict[str, Any] = {
        "architectures": ["DINOv3ViTModel"],
        "model_type": TYPE,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "intermediate_size": spec.mlp_dim,
        "use_gated_mlp": spec.mlp != "mlp",
        "hidden_act": "silu" if spec.mlp == "swiglu" else gelu,
        "layer_norm_eps": spec.norm_epsilon,
        "layerscale_value": spec.layer_scale,
        "num_register_tokens": spec.registers,
        "query_bias": query,
        "key_bias": key,
        "value_bias": value,
        "proj_bias": spec.dense_bias,
        "mlp_bias": spec.dense_bias,
        "rope_theta": ROTARY_BASE,
        # Their default is 2; what was trained here had none.
        "pos_embed_rescale": None,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "torch_dtype": "float32",
    }
    return {"config.json": config, "preprocessor_config.json": huggingface.processor(about)}
