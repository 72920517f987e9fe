"""Hugging Face's preprocessor_config.json, in and out: how its image processors prepare images.

A processor is a class of transformers. What the file leaves out has the default of that class;
null switches a step off.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import nearest
from vit_jax.weights import external
from vit_jax.weights.files.detect_format import Opened

FILE = "preprocessor_config.json"
Pair = tuple[int, int]


_BILINEAR, _BICUBIC = (models.INTERPOLATIONS.index(x) for x in ("bilinear", "bicubic"))
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _defaults(
    size: Any, resample: int, numbers: Mapping[str, Any], crop: int | None = None
) -> dict[str, Any]:
    """A size in words means that one number is the shorter side."""
    return {
        "do_resize": True,
        "size": size,
        "default_to_square": type(size) is int,
        "resample": resample,
        "do_center_crop": crop is not None,
        "crop_size": crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **numbers,
    }


_CLIPS = _defaults({"shortest_edge": 224}, _BICUBIC, _CLIP, 224)
# Defaults by the class's name without "ImageProcessor"; those of ViTs and BiT.
PROCESSORS = {
    "Beit": _defaults([224, 224], _BICUBIC, _HALF),
    "Bit": _CLIPS,
    "Blip": _defaults(384, _BICUBIC, _CLIP),
    "CLIP": _CLIPS,
    "ChineseCLIP": _CLIPS,
    "DINOv3ViT": _defaults(224, _BILINEAR, _IMAGENET),
    "DeiT": _defaults(256, _BICUBIC, _HALF, 224),
    "Siglip": _defaults([224, 224], _BICUBIC, _HALF),
    "Siglip2": _defaults(None, _BILINEAR, _HALF),  # as many patches as fit; here, the model's size
    "ViT": _defaults(224, _BILINEAR, _HALF),
}
# Version 5 refuses null for these where they are used, version 4 takes the default.
_NEEDED = ("size", "crop_size", "rescale_factor", "image_mean", "image_std")
# The classes that transformers takes where only the model's type is known.
_BY_MODEL = {
    "vit": "ViT", "vit_mae": "ViT", "ijepa": "ViT", "deit": "DeiT", "dinov2": "Bit", "bit": "Bit",
    "dinov3_vit": "DINOv3ViT", "vit_msn": "ViT", "clip": "CLIP", "clip_vision_model": "CLIP",
    "siglip": "Siglip", "siglip_vision_model": "Siglip", "siglip2": "Siglip2",
    "siglip2_vision_model": "Siglip2", "beit": "Beit", "data2vec-vision": "Beit",
}  # fmt: skip


# --- reading


def read(opened: Opened, image_size: Pair, *, any_size: bool = False) -> models.Preprocess:
    """Reads the file; without it, whole images are resized and mapped to [-1, 1].

    `image_size`: of the model, (height, width) in pixels; `any_size`: it takes others too.
    """
    if opened.preprocessor is None:
        return models.Preprocess(image_size, image_size)
    values = _default_values(opened) | {
        key: x for key, x in opened.preprocessor.items() if x is not None or key not in _NEEDED
    }
    values["size"] = list(image_size) if values["size"] is None else values["size"]
    resize = _size(values) if _flag(values, "do_resize") else None
    crop = _crop(values, resize) if _flag(values, "do_center_crop") else None
    # That of every prepared image; None where it depends on the image.
    output = crop or (None if isinstance(resize, int) else resize)
    pad = _without_nulls(values.get("pad_size")) if values.get("do_pad") else None
    if (
        (pad is not None and external.sides("pad_size", pad) != output)
        or (any_size and output is None and isinstance(resize, int))
        or (not any_size and output not in (None, image_size))
    ):
        sizes = {key: values.get(key) for key in ("size", "crop_size", "pad_size")}
        external.refuse(sizes, f"do not give image_size={_times(image_size)}", FILE)
    mean, std = _numbers(values)
    return models.Preprocess(
        output or image_size,
        resize,
        crop,
        mean,
        std,
        _interpolation(values["resample"]) if values["do_resize"] else "bilinear",
        longer="down" if isinstance(resize, int) else "nearest",
    )


def _default_values(opened: Opened) -> dict[str, Any]:
    document, config = opened.preprocessor or {}, opened.entries
    stated = document.get("image_processor_type")
    if stated is None:
        stated = document.get("feature_extractor_type") or config.get("image_processor_type")
    if stated is None:
        stated = _BY_MODEL.get(config.get("model_type", ""), "")
    # Classes of one name differ in what computes them: FeatureExtractor was the name before.
    name = str(stated).removesuffix("Fast").removesuffix("Pil")
    name = name.removesuffix("FeatureExtractor").removesuffix("ImageProcessor")
    if name not in PROCESSORS:
        near = nearest(str(stated), [f"{name}ImageProcessor" for name in PROCESSORS])
        why = f"has no steps that are known here. {near.removesuffix('.')}"
        external.refuse({"image_processor_type": stated or None}, why, FILE)
    return PROCESSORS[name]


def _crop(values: Mapping[str, Any], resize: Pair | int | None) -> Pair:
    crop = _without_nulls(values["crop_size"])
    if isinstance(crop, Mapping) and crop.keys() != {"height", "width"}:
        crop = str(crop)
    crop = external.sides("crop_size", crop)
    whole = resize if isinstance(resize, tuple) else (resize or max(crop),) * 2
    if any(c > r for c, r in zip(crop, whole, strict=True)):
        sizes = {"crop_size": _times(crop), "size": values["size"]}
        external.refuse(sizes, "would have black borders", FILE)
    return crop


def _size(values: Mapping[str, Any]) -> Pair | int:
    """(height, width), or the shorter side."""
    size = _without_nulls(values["size"])
    if isinstance(size, Mapping) and "shortest_edge" in size and len(size) == 1:
        return external.side("shortest_edge", size["shortest_edge"])
    if isinstance(size, Mapping) and size.keys() != {"height", "width"}:
        external.refuse({"size": size}, "is not height and width, or shortest_edge alone", FILE)
    if type(size) is int and not _flag(values, "default_to_square"):
        return external.side("size", size)
    return external.sides("size", size)


def _without_nulls(size: Any) -> Any:
    if not isinstance(size, Mapping):
        return size
    return {key: x for key, x in size.items() if x is not None}


def _flag(values: Mapping[str, Any], key: str) -> bool:
    return external.flag({key: values[key]}, key)


def _numbers(values: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) of pixels in [0, 1], for all steps that compute with them."""
    scale = 255.0  # of a pixel in [0, 1]
    if _flag(values, "do_rescale"):
        scale = 255 * external.positive(values, "rescale_factor", 1 / 255)
        scale = 1.0 if abs(scale - 1) < 1e-6 else scale
    mean, std = (_channels(values, f"image_{x}") for x in ("mean", "std"))
    if not _flag(values, "do_normalize"):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return tuple(m / scale for m in mean), tuple(s / scale for s in std)


def _channels(values: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value = values[key]
    if type(value) in (int, float):
        value = [value] * external.RGB
    return external.channels({key: value}, key, ())


def _interpolation(number: Any) -> str:
    if type(number) is not int or not 0 <= number < len(models.INTERPOLATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(models.INTERPOLATIONS))
        external.refuse({"resample": number}, f"is none of {known}", FILE)
    return models.INTERPOLATIONS[number]


def _times(size: Pair | None) -> str:
    return " x ".join(map(str, size or ()))


# --- writing


def write(about: models.Preprocess) -> dict[str, Any]:
    """Returns the file's document. UserError for steps that transformers' processors lack.

    The class is one that transformers 4 and 5 both read with these values: version 4's
    ViTImageProcessor neither crops nor resizes to a shorter side.
    """
    if about.fit != "stretch" or about.padding is not None:
        external.lacks("Hugging Face's", {"fit": about.fit, "fill": about.padding})
    if isinstance(about.resize, int):
        size = {"shortest_edge": about.resize}
    else:
        size = _sides(about.resize or about.image_size)
    whole = about.crop is None and not isinstance(about.resize, int)
    return {
        "image_processor_type": "ViTImageProcessor" if whole else "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": about.resize is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(about.mean),
        "image_std": list(about.std),
        "resample": models.INTERPOLATIONS.index(about.interpolation),
        "do_center_crop": about.crop is not None,
        "size": size,
        **({"crop_size": _sides(about.crop)} if about.crop else {}),
    }


def _sides(size: Pair) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
