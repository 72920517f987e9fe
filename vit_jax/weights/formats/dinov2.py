"""Hugging Face's Dinov2 and Dinov2WithRegisters, backbones and classifiers, in and out.

Its classifier sees the class token and the mean of the patches side by side. Its SwiGLU has both
dense layers of the gate in one array, which is taken apart here: the first half goes through the
SiLU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import architecture
from vit_jax.weights.external import ExternalWeights
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensor, Tensors, of_array
from vit_jax.weights.formats import config_consistency, dino, huggingface
from vit_jax.weights.formats import json_fields as said
from vit_jax.weights.layout import Layout, Match, Rule, rule

REGISTERS = "dinov2_with_registers"
TYPES = ("dinov2", REGISTERS)  # model_type of config.json
PACKED, GATE, UP = "mlp.weights_in.", "mlp.gate.", "mlp.up."


_dense = functools.partial(dino.dense, "encoder.layer")


def _layout(title: str, *mlp: Rule) -> Layout:
    qkv = " ".join(f"attention.attention.{name}" for name in ("query", "key", "value"))
    rules = (
        rule("patches/kernel", "embeddings.patch_embeddings.projection.weight", "D 3 P p"),
        rule("patches/bias", "embeddings.patch_embeddings.projection.bias", "D"),
        *dino.tokens(),
        rule("positions/embedding", "embeddings.position_embeddings", "1 N D"),
        *dino.norms_and_scales("encoder.layer"),
        *_dense("attention/qkv", qkv, "(H K) D", "(H K)"),
        *_dense("attention/out", "attention.output.dense", "D (H K)", "D"),
        *mlp,
        rule("norm/scale", "layernorm.weight", "D"),
        rule("norm/bias", "layernorm.bias", "D"),
        Rule("head/kernel", ("classifier.weight",), "C 2D", own="2D C"),
        rule("head/bias", "classifier.bias", "C"),
    )
    return Layout(title, rules, ("", "dinov2.", f"{REGISTERS}."), (dino.MASK_TOKEN_PATTERN,))


PLAIN = _layout(
    "Hugging Face's Dinov2",
    *_dense("mlp/fc1", "mlp.fc1", "M D", "M"),
    *_dense("mlp/fc2", "mlp.fc2", "D M", "D"),
)
GATED = _layout(
    "Hugging Face's Dinov2 with SwiGLU",
    *_dense("mlp/gate", GATE[:-1], "M D", "M"),
    *_dense("mlp/fc1", UP[:-1], "M D", "M"),
    *_dense("mlp/fc2", "mlp.weights_out", "D M", "D"),
)


def reads(opened: Opened) -> bool:
    """Whether config.json says that it is one."""
    return (opened.config or {}).get("model_type") in TYPES


def understand(opened: Opened) -> ExternalWeights:
    """The model in a file that is `reads`. UserError as external.understand."""
    config = opened.config or {}
    found = _match(opened, config)
    sizes = found.sizes
    image_size = _image_size(opened, sizes)
    size = architecture.size_name(found) or architecture.shape_name(sizes)
    name, num_classes = f"ViT-{size}/{sizes['P']}", sizes.get("C", 0)
    spec = models.spec(
        name,
        depth=sizes["L"],
        width=sizes["D"],
        mlp_dim=sizes["M"],
        num_heads=sizes["H"],
        pool="cls_avg" if num_classes else "cls",
        qkv_bias="all" if found.has("qkv_bias") else "none",
        mlp="swiglu" if found.layout is GATED else "mlp",
        registers=sizes.get("R", 0),
        layer_scale=said.positive(config, "layerscale_value", 1.0),
        gelu=_gelu(config),
        norm_epsilon=said.positive(config, "layer_norm_eps", 1e-6),
    )
    return ExternalWeights(
        name=name,
        spec=spec,
        num_classes=num_classes,
        class_names=huggingface.class_names(config, num_classes),
        preprocess=_preprocess(opened, image_size),
        match=found,
        pads_class_position=False,
    )


def _match(opened: Opened, config: Mapping[str, Any]) -> Match:
    layout = GATED if any(PACKED in name for name in opened.tensors) else PLAIN
    found = dino.matched(opened, layout, unpacked(opened.tensors))
    config_consistency.check(opened, config_consistency.of_dinov2(found, gated=layout is GATED))
    huggingface.check_qkv_bias(config, there=found.has("qkv_bias"))
    return found


def unpacked(tensors: Tensors) -> dict[str, Tensor]:
    """With the two halves of each packed array under names of their own."""
    found = {}
    for name, whole in tensors.items():
        if PACKED not in name or not whole.shape or whole.shape[0] % 2:
            found[name] = whole
            continue
        rows = whole.shape[0] // 2
        shape = (rows, *whole.shape[1:])
        first = lambda whole=whole, rows=rows: whole.read()[:rows]
        second = lambda whole=whole, rows=rows: whole.read()[rows:]
        found[name.replace(PACKED, GATE)] = Tensor(shape, whole.dtype, first)
        found[name.replace(PACKED, UP)] = Tensor(shape, whole.dtype, second)
    return found


def packed(tensors: Tensors, spec: ViTSpec) -> dict[str, Tensor]:
    """The opposite of `unpacked`; with the mask token that a model with registers has to have."""
    found = {}
    if spec.registers:
        found[dino.MASK_TOKEN] = of_array(np.zeros((1, spec.width), np.float32))
    for name, one in tensors.items():
        if GATE in name:
            other = tensors[name.replace(GATE, UP)]
            both = lambda one=one, other=other: np.concatenate([one.read(), other.read()])
            shape = (2 * one.shape[0], *one.shape[1:])
            found[name.replace(GATE, PACKED)] = Tensor(shape, one.dtype, both)
        elif UP not in name:
            found[name] = one
    return found


def _gelu(config: Mapping[str, Any]) -> str:
    return huggingface.GELUS[said.word(config, "hidden_act", "gelu", huggingface.GELUS)]


def _image_size(opened: Opened, sizes: Mapping[str, int]) -> tuple[int, int]:
    said: Any = (opened.config or {}).get("image_size", 224)
    side, patch = (said if isinstance(said, int) else 0), sizes["P"]
    if side < patch or (side // patch) ** 2 + 1 != sizes["N"]:
        raise UserError(
            f"{opened.path} has {sizes['N']} positions, but config.json says image_size={said!r}, "
            f"for patches of {patch} pixels."
        )
    return side // patch * patch, side // patch * patch


def _preprocess(opened: Opened, image_size: tuple[int, int]) -> models.Preprocess:
    """As preprocessor_config.json says, at the size that the positions are for."""
    found = huggingface.preprocess(opened.preprocessor or {}, image_size)
    if found.crop in (None, image_size):
        return found
    resize = found.resize
    if isinstance(resize, int):
        resize = round(resize * image_size[0] / found.crop[0])
    return dataclasses.replace(found, resize=resize, crop=image_size)


# --- writing


def fits(spec: Any, num_classes: int) -> bool:
    """Whether a model is a Dinov2 and no plain ViT."""
    plain = ("position_at", "parallel", "qk_norm", "dense_bias", "norm", "pre_logits")
    defaults = {name: getattr(ViTSpec, name) for name in plain}
    return (
        type(spec) is ViTSpec
        and spec.pool == ("cls_avg" if num_classes else "cls")
        and spec.position_embedding == "learned_1d"
        and spec.layer_scale > 0
        and spec.mlp in ("mlp", "swiglu")
        and spec.qkv_bias in ("all", "none")
        and _ratio(spec) is not None
        and all(getattr(spec, name) == default for name, default in defaults.items())
    )


def _ratio(spec: ViTSpec) -> int | None:
    """mlp_ratio of config.json, a whole number; None: there is none for this hidden width."""
    for ratio in range(1, 2 * spec.mlp_dim // spec.width + 2):
        hidden = ratio * spec.width
        # The width behind the gate is 2/3 of it, rounded up to a multiple of 8.
        behind = (int(hidden * 2 / 3) + 7) // 8 * 8
        if spec.mlp_dim == (behind if spec.mlp == "swiglu" else hidden):
            return ratio
    return None


def layout_for(spec: ViTSpec) -> Layout:
    """That of what `fits`."""
    return GATED if spec.mlp == "swiglu" else PLAIN


def completed(arrays: Tensors, spec: ViTSpec, num_classes: int) -> dict[str, Tensor]:
    """As its files have them; in a classifier the head has no prefix, the rest has."""
    found = packed(arrays, spec)
    if not num_classes:
        return found
    prefix = lambda name: "" if name.startswith("classifier.") else f"{_type(spec)}."
    return {prefix(name) + name: x for name, x in found.items()}


def _type(spec: ViTSpec) -> str:
    return REGISTERS if spec.registers else "dinov2"


def documents(
    spec: ViTSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    """config.json and preprocessor_config.json. UserError for images that are no squares."""
    height, width = about.image_size
    if height != width:
        raise UserError(
            f"Hugging Face's Dinov2 is for squares, this model for {height} x {width} pixels: give "
            "--image_size."
        )
    kind = "Dinov2WithRegisters" if spec.registers else "Dinov2"
    config: dict[str, Any] = {
        "architectures": [f"{kind}{'ForImageClassification' if num_classes else 'Model'}"],
        "model_type": _type(spec),
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "mlp_ratio": _ratio(spec),
        "use_swiglu_ffn": spec.mlp == "swiglu",
        "hidden_act": "gelu" if spec.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": spec.norm_epsilon,
        "layerscale_value": spec.layer_scale,
        "image_size": height,
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "qkv_bias": spec.qkv_bias == "all",
        "use_mask_token": False,
        "torch_dtype": "float32",
        **huggingface.labels(num_classes, names),
    }
    if spec.registers:
        config["num_register_tokens"] = spec.registers
    return {"config.json": config, "preprocessor_config.json": huggingface.processor(about)}
