"""Hugging Face's ViT (ViTForImageClassification, ViTModel, ViTForMaskedImageModeling) and I-JEPA.

I-JEPA (IJepaForImageClassification, IJepaModel) is the same without a class token: its classifier
sees the mean of the patches. It is what a plain ViT with average pooling is there.

ViTModel's pooler is a dense layer with tanh on the class token: what is called pre-logits here. Its
GELU is exact and its layer norms have 1e-12 where config.json does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import label_names
from vit_jax.weights.formats import json_fields
from vit_jax.weights.layout import Layout, rule


class _Names(NamedTuple):
    """What is called differently: a layer, its query, key, value and output, and its MLP."""

    layer: str
    attention: tuple[str, str, str, str]
    fc1: str
    fc2: str


def _layout(title: str, called: _Names, *, ijepa: bool) -> Layout:
    layer, attention, fc1, fc2 = called
    *qkv, out = (f"{layer}.{{}}.{name}" for name in attention)
    # That of I-JEPA takes the first patch, and no other.
    pooler = (
        rule("pre_logits/kernel", "pooler.dense.weight", "E D"),
        rule("pre_logits/bias", "pooler.dense.bias", "E"),
    )
    names = lambda leaf: " ".join(f"{name}.{leaf}" for name in qkv)
    rules = (
        rule("patches/kernel", "embeddings.patch_embeddings.projection.weight", "D 3 P p"),
        rule("patches/bias", "embeddings.patch_embeddings.projection.bias", "D"),
        *(() if ijepa else (rule("cls", "embeddings.cls_token", "1 1 D"),)),
        rule("positions/embedding", "embeddings.position_embeddings", "1 N D"),
        rule("norm1/scale", f"{layer}.{{}}.layernorm_before.weight", "D"),
        rule("norm1/bias", f"{layer}.{{}}.layernorm_before.bias", "D"),
        rule("attention/qkv/kernel", names("weight"), "(H K) D"),
        rule("attention/qkv/bias", names("bias"), "(H K)"),
        rule("attention/out/kernel", f"{out}.weight", "D (H K)"),
        rule("attention/out/bias", f"{out}.bias", "D"),
        rule("norm2/scale", f"{layer}.{{}}.layernorm_after.weight", "D"),
        rule("norm2/bias", f"{layer}.{{}}.layernorm_after.bias", "D"),
        rule("mlp/fc1/kernel", f"{layer}.{{}}.{fc1}.weight", "M D"),
        rule("mlp/fc1/bias", f"{layer}.{{}}.{fc1}.bias", "M"),
        rule("mlp/fc2/kernel", f"{layer}.{{}}.{fc2}.weight", "D M"),
        rule("mlp/fc2/bias", f"{layer}.{{}}.{fc2}.bias", "D"),
        rule("norm/scale", "layernorm.weight", "D"),
        rule("norm/bias", "layernorm.bias", "D"),
        *(() if ijepa else pooler),
        rule("head/kernel", "classifier.weight", "C D"),
        rule("head/bias", "classifier.bias", "C"),
    )
    # Ignored is what masked image modelling has besides.
    ignored = (r"embeddings\.mask_token", r"decoder\.0\.(weight|bias)")
    return Layout(
        title,
        rules,
        prefixes=("", "ijepa." if ijepa else "vit."),
        ignored=ignored,
        needed=() if ijepa else ("cls",),
    )


_FILES = _Names(
    "encoder.layer",
    (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    "intermediate.dense",
    "output.dense",
)
# transformers 5 still writes files by the names above, but calls its modules otherwise.
_MODULES = _Names(
    "layers",
    ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
    "mlp.fc1",
    "mlp.fc2",
)
_STATE_DICT = "the state_dict() of Hugging Face's {} since transformers 5"
LAYOUT = _layout("Hugging Face's ViT", _FILES, ijepa=False)
IJEPA = _layout("Hugging Face's I-JEPA", _FILES, ijepa=True)
VITS = (LAYOUT, _layout(_STATE_DICT.format("ViT"), _MODULES, ijepa=False))
IJEPAS = (IJEPA, _layout(_STATE_DICT.format("I-JEPA"), _MODULES, ijepa=True))
LAYOUTS = VITS + IJEPAS
GELUS = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}


def layout_for(spec: ViTSpec) -> Layout:
    """The one that a model is written in."""
    return IJEPA if spec.pool == "avg" else LAYOUT


def check_qkv_bias(config: Mapping[str, Any] | None, *, there: bool) -> None:
    """UserError for biases that a config.json takes for granted and that are not there."""
    if config and not there and config.get("qkv_bias") is None:
        raise UserError(
            "The arrays have no biases of query, key and value, but config.json does not say so: "
            "if the model has none, put qkv_bias=false there."
        )


def fields(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The model's fields that its config.json tells. UserError for what cannot be computed here."""
    config = config or {}
    gelu = GELUS[json_fields.word(config, "hidden_act", "gelu", GELUS)]
    if config.get("pooler_act", "tanh") != "tanh":
        raise UserError(
            f"config.json: pooler_act={config['pooler_act']!r}; only tanh is supported."
        )
    return {"gelu": gelu, "norm_epsilon": json_fields.positive(config, "layer_norm_eps", 1e-12)}


def class_names(config: Mapping[str, Any] | None, num_classes: int) -> tuple[str, ...] | None:
    """From id2label, as label_names.read gives them."""
    return label_names.read("id2label", json_fields.section(config, "id2label"), num_classes)


def preprocess(document: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """From preprocessor_config.json. UserError for steps that prediction does not have."""
    if not document.get("do_rescale", True):
        raise UserError("preprocessor_config.json: do_rescale=false; pixels have to become [0, 1].")
    factor = json_fields.positive(document, "rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-3:
        raise UserError(
            f"preprocessor_config.json: rescale_factor={factor}; pixels have to become [0, 1], "
            "which is 1/255."
        )
    size: Any = document.get("size") or list(image_size)
    resize: tuple[int, int] | int | None = None
    if document.get("do_resize", True):
        shortest = isinstance(size, Mapping) and "shortest_edge" in size
        resize = (
            json_fields.side("shortest_edge", size["shortest_edge"])
            if shortest
            else json_fields.sides("size", size)
        )
    crop = None
    if document.get("do_center_crop", False):
        crop = json_fields.sides("crop_size", document.get("crop_size") or size)
    normalise = document.get("do_normalize", True)
    half = (0.5, 0.5, 0.5)
    mean = json_fields.channels(document, "image_mean", half) if normalise else (0.0, 0.0, 0.0)
    std = json_fields.channels(document, "image_std", half) if normalise else (1.0, 1.0, 1.0)
    return models.Preprocess(
        image_size,
        resize,
        crop,
        mean,
        std,
        _interpolation(document.get("resample")),
        longer="down" if isinstance(resize, int) else "nearest",
    )


def preprocess_of_any_size(document: Mapping[str, Any]) -> models.Preprocess:
    """As `preprocess`, for a model that takes images of any size: of that which they become.

    Raises:
      UserError: `document`, complete with its defaults, does not say which size that is; or as
        `preprocess`.
    """
    key = "crop_size" if document.get("do_center_crop") else "size"
    sides = document.get(key)
    if not isinstance(sides, Mapping) or {"height", "width"} <= sides.keys():
        return preprocess(document, json_fields.sides(key, sides))
    raise UserError(
        f"preprocessor_config.json: {key}={sides!r} does not say how large images become: give "
        "height and width, or a crop."
    )


def _interpolation(number: Any) -> str:
    """By Pillow's number; bilinear where there is none, as ViT's processor has it."""
    if number is None:
        return "bilinear"
    if type(number) is not int or not 0 <= number < len(models.INTERPOLATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(models.INTERPOLATIONS))
        raise UserError(f"preprocessor_config.json: resample={number!r}. There are {known}.")
    return models.INTERPOLATIONS[number]


def documents(
    spec: ViTSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    """config.json and preprocessor_config.json. UserError for a model that ViT cannot be."""
    if spec.pool not in ("cls", "avg"):
        raise UserError(
            f"Hugging Face's ViT sees the class token and its I-JEPA the mean of the patches; this "
            f"model has pool={spec.pool}: write it by python -m vit_jax.convert --to=timm or "
            "--to=google_npz."
        )
    if spec.pre_logits and spec.pool == "avg":
        raise UserError(
            "Hugging Face's I-JEPA, which is its ViT with average pooling, has no layer between "
            "mean and head, this model has pre-logits: write it by python -m vit_jax.convert "
            "--to=google_npz."
        )
    if spec.pre_logits and num_classes:
        raise UserError(
            "Hugging Face's ViTForImageClassification has no layer between backbone and head, this "
            "model has pre-logits: leave the head out (--head=drop), which makes it ViTModel with "
            "a pooler, or write it by python -m vit_jax.convert --to=google_npz."
        )
    height, width = about.image_size
    kind, model_type = ("IJepa", "ijepa") if spec.pool == "avg" else ("ViT", "vit")
    config = {
        "architectures": [f"{kind}{'ForImageClassification' if num_classes else 'Model'}"],
        "model_type": model_type,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "intermediate_size": spec.mlp_dim,
        "hidden_act": "gelu" if spec.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": spec.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "qkv_bias": spec.qkv_bias == "all",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pooler_act": "tanh",
        "pooler_output_size": spec.width,
        "torch_dtype": "float32",
        **labels(num_classes, names),
    }
    return {"config.json": config, "preprocessor_config.json": processor(about)}


def labels(num_classes: int, names: tuple[str, ...] | None) -> dict[str, dict[str, Any]]:
    """What config.json says of the classes; nothing without them."""
    if not num_classes:
        return {}
    found = names or tuple(map(label_names.placeholder, range(num_classes)))
    return {
        "id2label": {str(i): label for i, label in enumerate(found)},
        "label2id": {label: i for i, label in enumerate(found)},
    }


def processor(about: models.Preprocess) -> dict[str, Any]:
    """preprocessor_config.json. UserError for what its processors do not have."""
    if about.fit != "stretch":
        raise UserError(
            "Hugging Face's processors resize to the shorter side or to a size, and do not pad; "
            f"this model's images are resized in proportion, fit={about.fit!r}: write --to=timm."
        )
    document: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": about.resize is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(about.mean),
        "image_std": list(about.std),
        "resample": models.INTERPOLATIONS.index(about.interpolation),
        "do_center_crop": about.crop is not None,
    }
    if isinstance(about.resize, int):
        document["size"] = {"shortest_edge": about.resize}
    else:
        document["size"] = _sides(about.resize or about.image_size)
    if about.crop:
        document["crop_size"] = _sides(about.crop)
    return document


def _sides(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
