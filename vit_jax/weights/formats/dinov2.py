"""Hugging Face's Dinov2 and Dinov2WithRegisters, backbones and classifiers, in and out.

Its classifier sees the class token and the mean of the patches side by side. Its SwiGLU has both
dense layers of the gate in one array, which is split here: the first half goes through the SiLU.
"""

from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames, Fits
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensor, Tensors, of_array
from vit_jax.weights.formats import huggingface, huggingface_processors
from vit_jax.weights.layout import Layout, Rule, rule, torch_linear, torch_norm
from vit_jax.weights.match import best

REGISTERS = "dinov2_with_registers"  # a model_type of config.json
TYPES = ("dinov2", REGISTERS)
# Defaults of transformers' configs, by type.
_CONFIG = {
    key: x
    for key, x in huggingface.VIT_CONFIG.items()
    if key not in ("intermediate_size", "pooler_act")
} | {
    "layer_norm_eps": 1e-6,
    "patch_size": 14,
    "mlp_ratio": 4,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "dinov2": _CONFIG | {"num_register_tokens": 0},
    REGISTERS: _CONFIG | {"patch_size": 16, "num_register_tokens": 4},
}
PACKED, GATE, UP = "mlp.weights_in.", "mlp.gate.", "mlp.up."
NEEDED = ("cls", "scale1", "scale2")  # of the optional parts
# A parameter of masked pre-training, not of the model.
MASK_TOKEN, MASK_TOKEN_PATTERN = "embeddings.mask_token", r"embeddings\.mask_token"


def tokens() -> tuple[Rule, ...]:
    """Rules of class token and registers."""
    return (
        rule("cls", "embeddings.cls_token", "1 1 D"),
        rule("registers", "embeddings.register_tokens", "1 R D"),
    )


def norms_and_scales(layers: str) -> tuple[Rule, ...]:
    """Rules of each block's norms and LayerScale."""
    return (
        *torch_norm("norm1", f"{layers}.{{}}.norm1"),
        *torch_norm("norm2", f"{layers}.{{}}.norm2"),
        rule("scale1/scale", f"{layers}.{{}}.layer_scale1.lambda1", "D"),
        rule("scale2/scale", f"{layers}.{{}}.layer_scale2.lambda1", "D"),
    )


def _dense(ours: str, theirs: str, kernel: str, bias: str) -> tuple[Rule, ...]:
    names = " ".join(f"encoder.layer.{{}}.{name}" for name in theirs.split())
    return torch_linear(ours, names, kernel, bias)


def _layout(title: str, *mlp: Rule) -> Layout:
    qkv = " ".join(f"attention.attention.{name}" for name in ("query", "key", "value"))
    rules = (
        *torch_linear("patches", "embeddings.patch_embeddings.projection", "D 3 P p", "D"),
        *tokens(),
        rule("positions/embedding", "embeddings.position_embeddings", "1 N D"),
        *norms_and_scales("encoder.layer"),
        *_dense("attention/qkv", qkv, "(H K) D", "(H K)"),
        *_dense("attention/out", "attention.output.dense", "D (H K)", "D"),
        *mlp,
        *torch_norm("norm", "layernorm"),
        Rule("head/kernel", ("classifier.weight",), "C 2D", own="2D C"),
        rule("head/bias", "classifier.bias", "C"),
    )
    return Layout(
        title, rules, ("", "dinov2.", f"{REGISTERS}."), (MASK_TOKEN_PATTERN,), needed=NEEDED
    )


_PLAIN = _layout(
    "Hugging Face's Dinov2",
    *_dense("mlp/fc1", "mlp.fc1", "M D", "M"),
    *_dense("mlp/fc2", "mlp.fc2", "D M", "D"),
)
_GATED = _layout(
    "Hugging Face's Dinov2 with SwiGLU",
    *_dense("mlp/gate", GATE[:-1], "M D", "M"),
    *_dense("mlp/fc1", UP[:-1], "M D", "M"),
    *_dense("mlp/fc2", "mlp.weights_out", "D M", "D"),
)


def _behind_gate(hidden: int) -> int:
    """Width after a gate: 2/3 of the hidden width, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _unpacked(tensors: Tensors) -> dict[str, Tensor]:
    """Arrays with each packed one split into two halves with their own names."""
    halves = {}
    for name, whole in tensors.items():
        if PACKED not in name or not whole.shape or whole.shape[0] % 2:
            halves[name] = whole
            continue
        rows = whole.shape[0] // 2
        shape = (rows, *whole.shape[1:])
        first = lambda whole=whole, rows=rows: whole.read()[:rows]
        second = lambda whole=whole, rows=rows: whole.read()[rows:]
        halves[name.replace(PACKED, GATE)] = Tensor(shape, whole.dtype, first)
        halves[name.replace(PACKED, UP)] = Tensor(shape, whole.dtype, second)
    return halves


def _read(opened: Opened, given: Given) -> ExternalWeights:
    kind = (opened.config or {})["model_type"]
    config = huggingface.with_defaults(opened, CONFIGS[kind])
    gated = any(PACKED in name for name in opened.tensors)
    match = best([_GATED if gated else _PLAIN], _unpacked(opened.tensors))
    sizes = match.sizes
    stated = {
        "use_swiglu_ffn": config_json.flag_of(gated),
        "mlp_ratio": config_json.mlp_ratio("mlp_ratio", sizes, _behind_gate if gated else int),
        # A last row of pixels that does not fill a patch is left out.
        "image_size": Fits(
            f"{sizes['N']} positions of patches of {sizes['P']} pixels",
            lambda x: (config_json.side("image_size", x) // sizes["P"]) ** 2 + 1 == sizes["N"],
        ),
        "num_register_tokens": sizes.get("R", 0),
    }
    huggingface.check_sizes(opened, match, CONFIGS[kind], stated)
    side = config["image_size"] // sizes["P"] * sizes["P"]
    preprocess = huggingface_processors.read(opened, (side, side), any_size=True)
    grid = (x // sizes["P"] for x in preprocess.image_size)
    return external.external_weights(
        external.with_heads(opened, match, given, config["num_attention_heads"]),
        preprocess,
        fields={
            **huggingface.fields(config, match),
            "pool": "cls_avg" if match.has("head") else "cls",
            "mlp": "swiglu" if gated else "mlp",
            "registers": sizes.get("R", 0),
            "layer_scale": config_json.positive(config, "layerscale_value", 1.0),
        },
        class_names=huggingface.class_names(config, match),
        assumed=huggingface.assumed(opened),
        positions_for=None if set(grid) == {side // sizes["P"]} else (side, side),
        position_resize="bicubic_antialias" if kind == REGISTERS else "bicubic_torch",
    )


# --- writing


def _holds(spec: Any, num_classes: int) -> bool:
    """Whether a model is a Dinov2, and not a plain ViT."""
    plain = ("position_at", "parallel", "qk_norm", "dense_bias", "norm", "pre_logits")
    defaults = {name: getattr(ViTSpec, name) for name in plain}
    return (
        type(spec) is ViTSpec
        and spec.pool == ("cls_avg" if num_classes else "cls")
        and spec.position_embedding == "learned_1d"
        and spec.layer_scale > 0
        and spec.mlp in ("mlp", "swiglu")
        and spec.qkv_bias in ("all", "none")
        and _mlp_ratio(spec) is not None
        and all(getattr(spec, name) == default for name, default in defaults.items())
    )


def _mlp_ratio(spec: ViTSpec) -> int | None:
    """mlp_ratio of config.json, a whole number; None if no such number gives this MLP."""
    for ratio in range(1, 2 * spec.mlp_dim // spec.width + 2):
        hidden = ratio * spec.width
        if spec.mlp_dim == (_behind_gate(hidden) if spec.mlp == "swiglu" else hidden):
            return ratio
    return None


def _packed(tensors: Tensors, spec: ViTSpec, num_classes: int) -> Tensors:
    """The opposite of `_unpacked`; in a classifier all but the head gets a prefix.

    A model with registers has to have a mask token.
    """
    arrays: dict[str, Tensor] = {}
    if spec.registers:
        arrays[MASK_TOKEN] = of_array(np.zeros((1, spec.width), np.float32))
    for name, one in tensors.items():
        if GATE in name:
            other = tensors[name.replace(GATE, UP)]
            both = lambda one=one, other=other: np.concatenate([one.read(), other.read()])
            shape = (2 * one.shape[0], *one.shape[1:])
            arrays[name.replace(GATE, PACKED)] = Tensor(shape, one.dtype, both)
        elif UP not in name:
            arrays[name] = one
    if not num_classes:
        return arrays
    prefix = lambda name: "" if name.startswith("classifier.") else f"{_type(spec)}."
    return {prefix(name) + name: x for name, x in arrays.items()}


def _type(spec: ViTSpec) -> str:
    return REGISTERS if spec.registers else "dinov2"


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    height, width = about.image_size
    if height != width:
        raise UserError(
            f"Hugging Face's Dinov2 is for squares, this model for {height} x {width} pixels: give "
            "--image_size."
        )
    kind = "Dinov2WithRegisters" if spec.registers else "Dinov2"
    suffix = "ForImageClassification" if num_classes else "Model"
    config = huggingface.vit_config(
        spec, f"{kind}{suffix}", _type(spec), about.image_size, num_classes, names
    ) | {
        "mlp_ratio": _mlp_ratio(spec),
        "use_swiglu_ffn": spec.mlp == "swiglu",
        "layerscale_value": spec.layer_scale,
        "qkv_bias": spec.qkv_bias == "all",
        "use_mask_token": False,
    }
    if spec.registers:
        config["num_register_tokens"] = spec.registers
    return huggingface.documents(config, about)


FORMAT = Format(
    destination="huggingface",
    model_types=TYPES,
    needs_type=True,
    reads=_read,
    holds=_holds,
    layout_for=lambda spec: _GATED if spec.mlp == "swiglu" else _PLAIN,
    documents=_documents,
    packed=_packed,
    hint="Write --to=checkpoint.",
    is_plain=False,
)
