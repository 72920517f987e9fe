"""JSON that Hugging Face's models share: config.json, classes, and image processors."""

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import json_fields, label_names
from vit_jax.weights.external import ClassNames, Documents
from vit_jax.weights.match import Match

GELUS = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
_ZERO, _HALF, _ONE = (0.0, 0.0, 0.0), (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)


def check_qkv_bias(config: Mapping[str, Any], match: Match) -> None:
    """UserError for biases that a config.json implies and the arrays lack."""
    if config and not match.has("qkv_bias") and config.get("qkv_bias") is None:
        raise UserError(
            "The arrays have no biases of query, key and value, but config.json does not say so: "
            "if the model has none, put qkv_bias=false there."
        )


def gelu(config: Mapping[str, Any]) -> str:
    """The form of GELU; exact by default."""
    return GELUS[json_fields.word(config, "hidden_act", "gelu", GELUS)]


def class_names(config: Mapping[str, Any], match: Match) -> ClassNames:
    """Names of id2label, as label_names.read gives them."""
    labels = json_fields.section(config, "id2label")
    return label_names.read("id2label", labels, match.sizes.get("C", 0))


def preprocess(document: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """Preparation by preprocessor_config.json. UserError for steps that prediction lacks."""
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
    interpolation = _interpolation(document.get("resample"))
    normalise = document.get("do_normalize", True)
    return json_fields.preprocess(
        document if normalise else {},
        "image_",
        image_size,
        (resize, crop, interpolation),
        mean_and_std=(_HALF, _HALF) if normalise else (_ZERO, _ONE),
    )


def preprocess_of_any_size(document: Mapping[str, Any]) -> models.Preprocess:
    """Preparation for a model that takes any size, at the size that images end up with.

    Args:
      document: complete with its processor's defaults.

    Raises:
      UserError: `document` does not determine that size; or as `preprocess`.
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
    """The name of Pillow's number; bilinear if absent, as in ViT's processor."""
    if number is None:
        return "bilinear"
    if type(number) is not int or not 0 <= number < len(models.INTERPOLATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(models.INTERPOLATIONS))
        raise UserError(f"preprocessor_config.json: resample={number!r}. There are {known}.")
    return models.INTERPOLATIONS[number]


def vit_config(
    spec: ViTSpec,
    architecture: str,
    model_type: str,
    size: tuple[int, int],
    num_classes: int,
    names: ClassNames,
) -> dict[str, Any]:
    """Entries of config.json that all of Hugging Face's ViTs have, for images of this size."""
    height, width = size
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "hidden_act": "gelu" if spec.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": spec.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "torch_dtype": "float32",
        **labels(num_classes, names),
    }


def labels(num_classes: int, names: ClassNames) -> dict[str, dict[str, Any]]:
    """Entries of config.json about classes; none for a model without a head."""
    if not num_classes:
        return {}
    names = names or tuple(map(label_names.placeholder, range(num_classes)))
    return {
        "id2label": {str(i): label for i, label in enumerate(names)},
        "label2id": {label: i for i, label in enumerate(names)},
    }


def documents(config: dict[str, Any], about: models.Preprocess) -> Documents:
    """config.json and preprocessor_config.json."""
    return {"config.json": config, "preprocessor_config.json": processor(about)}


def processor(about: models.Preprocess) -> dict[str, Any]:
    """preprocessor_config.json. UserError for steps that transformers' processors lack."""
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
