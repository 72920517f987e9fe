"""Hugging Face's preprocessor_config.json, in and out: how its image processors prepare images.

A processor is a class of transformers. What the file leaves out has the default of that class;
null switches a step off. All resize, crop centrally, multiply each pixel and normalise; the classes
differ in their defaults and in what a size means.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.core.errors import UserError, nearest
from vit_jax.weights import external
from vit_jax.weights.files.detect_format import Opened

FILE = "preprocessor_config.json"
Pair = tuple[int, int]


class Steps(NamedTuple):
    """The steps that change an image's size: as in models.Preprocess."""

    resize: Pair | int | None
    crop: Pair | None = None

    @property
    def output(self) -> Pair | None:
        """(height, width) of every prepared image; None if it depends on the image."""
        return self.crop or (None if isinstance(self.resize, int) else self.resize)


class Processor(NamedTuple):
    """A class of transformers: defaults, and the steps that its size stands for."""

    defaults: Mapping[str, Any]
    steps: Callable[[Pair | int, Mapping[str, Any]], Steps] = lambda size, _: Steps(size)


def _convnext(size: Pair | int, values: Mapping[str, Any]) -> Steps:
    """Below 384 pixels, a crop of this size from an image whose shorter side is larger."""
    if not isinstance(size, int):
        raise UserError(f"{FILE}: size={size} of a ConvNextImageProcessor: give shortest_edge.")
    if values["do_center_crop"]:
        raise UserError(f"{FILE}: a ConvNextImageProcessor crops by crop_pct: drop do_center_crop.")
    if size >= 384:
        return Steps((size, size))
    return Steps(int(size / external.cropped_part(values, 224 / 256, [size])), (size, size))


def _levit(size: Pair | int, _: Mapping[str, Any]) -> Steps:
    return Steps(int(256 / 224 * size) if isinstance(size, int) else size)


def _poolformer(size: Pair | int, values: Mapping[str, Any]) -> Steps:
    height, width = (size, size) if isinstance(size, int) else size
    part = external.cropped_part(values, 1.0, (height, width))
    resize = (int(height / part), int(width / part))
    return Steps(resize[0] if height == width else resize)


class _Varies(NamedTuple):
    """A default that is another one in transformers 4 than in 5; for the message."""

    in_4: Any
    in_5: Any


_BILINEAR, _BICUBIC = (models.INTERPOLATIONS.index(x) for x in ("bilinear", "bicubic"))
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _defaults(
    size: Any, resample: Any, numbers: Mapping[str, Any], crop: int | None = None, **others: Any
) -> dict[str, Any]:
    """A size in words means that one number is the shorter side."""
    return {
        "do_resize": True,
        "size": size,
        "default_to_square": not isinstance(size, dict),
        "resample": resample,
        "do_center_crop": crop is not None,
        "crop_size": crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **numbers,
        **others,
    }


def _shorter(size: int) -> dict[str, int]:
    return {"shortest_edge": size}


_CLIPS = Processor(_defaults(_shorter(224), _BICUBIC, _CLIP, 224))
_MOBILENET = Processor(_defaults(_shorter(256), _BILINEAR, _HALF, 224))
# By the class's name without "ImageProcessor".
PROCESSORS = {
    "Beit": Processor(
        _defaults(_Varies(256, 224), _BICUBIC, _HALF, 224, do_center_crop=_Varies("true", "false"))
    ),
    "Bit": _CLIPS,
    "Blip": Processor(_defaults(384, _BICUBIC, _CLIP)),
    "CLIP": _CLIPS,
    "ChineseCLIP": _CLIPS,
    "ConvNext": Processor(
        _defaults(_shorter(384), _Varies(2, 3), _HALF, crop_pct=224 / 256), _convnext
    ),
    "DINOv3ViT": Processor(_defaults(224, _BILINEAR, _IMAGENET)),
    "DeiT": Processor(_defaults(256, _BICUBIC, _HALF, 224)),
    "EfficientNet": Processor(
        _defaults(
            346,
            _Varies(0, 3),
            _HALF,
            289,
            do_center_crop=False,
            rescale_offset=False,
            include_top=True,
        )
    ),
    "Levit": Processor(_defaults(_shorter(224), _BICUBIC, _IMAGENET, 224), _levit),
    "MobileNetV1": _MOBILENET,
    "MobileNetV2": _MOBILENET,
    "PoolFormer": Processor(
        _defaults(_shorter(224), _BICUBIC, _IMAGENET, 224, crop_pct=0.9), _poolformer
    ),
    "Pvt": Processor(_defaults(224, _Varies(2, 3), _IMAGENET)),
    "Segformer": Processor(_defaults(512, _BILINEAR, _IMAGENET)),
    "Siglip": Processor(_defaults([224, 224], _BICUBIC, _HALF, default_to_square=False)),
    "ViT": Processor(_defaults(224, _BILINEAR, _HALF)),
}
# Version 5 refuses null for these where they are used, version 4 takes the default.
_NEEDED = ("size", "crop_size", "rescale_factor", "image_mean", "image_std")
# The classes that transformers takes where only the model's type is known.
_BY_MODEL = {
    "vit": "ViT", "vit_mae": "ViT", "ijepa": "ViT", "deit": "DeiT", "dinov2": "Bit", "bit": "Bit",
    "dinov3_vit": "DINOv3ViT",
}  # fmt: skip


# --- reading


def read(opened: Opened, image_size: Pair, *, any_size: bool = False) -> models.Preprocess:
    """Reads the file; without it, whole images are resized and mapped to [-1, 1].

    Args:
      image_size: of the model, (height, width) in pixels.
      any_size: whether the model takes others too; then the file's is the result's.

    Raises:
      UserError: a class that is not known here, steps that prediction lacks, values that are not
        stated and of which transformers 4 and 5 have different defaults, or images of another size
        than the model's.
    """
    if opened.preprocessor is None:
        return models.Preprocess(image_size, image_size)
    name, processor = _processor(opened)
    has_default = lambda key, x: x is None and key in _NEEDED
    stated = {key: x for key, x in opened.preprocessor.items() if not has_default(key, x)}
    values = _Values(name, {**processor.defaults, **stated})
    steps = _steps(values, processor)
    if any_size and steps.output is None and isinstance(steps.resize, int):
        raise UserError(
            f"{FILE}: size={values['size']!r} does not say how large images become: give height "
            "and width, or a crop."
        )
    if steps.output not in (None, image_size) and not any_size:
        raise UserError(
            f"{FILE}: images become {_times(steps.output)} pixels, the model takes "
            f"{_times(image_size)}: change its size and crop_size, or the model's image_size."
        )
    _check_padding(values, steps)
    mean, std = _numbers(values)
    return models.Preprocess(
        steps.output or image_size,
        steps.resize,
        steps.crop,
        mean,
        std,
        _interpolation(values["resample"]) if values["do_resize"] else "bilinear",
        longer="down" if isinstance(steps.resize, int) else "nearest",
    )


class _Values(dict[str, Any]):
    """All values of a file; UserError for one that is needed and not determined."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.name = name

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, _Varies):
            raise UserError(
                f"{FILE} does not state {key}, which by default is {value.in_4} in the "
                f"{self.name}ImageProcessor of transformers 4 and {value.in_5} in that of 5: state "
                "it."
            )
        return value


def _processor(opened: Opened) -> tuple[str, Processor]:
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
        said = f"image_processor_type={stated!r}" if stated else "no image_processor_type"
        known = [f"{name}ImageProcessor" for name in PROCESSORS]
        raise UserError(
            f"{opened.path}: {FILE} says {said}, whose steps are not known here. "
            f"{nearest(str(stated), known)} State one that prepares images likewise, with size, "
            "crop_size, resample, image_mean and image_std."
        )
    return name, PROCESSORS[name]


def _steps(values: _Values, processor: Processor) -> Steps:
    steps = Steps(None)
    if _flag(values, "do_resize"):
        steps = processor.steps(_size(values), values)
    if _flag(values, "do_center_crop") and not steps.crop:
        crop = _without_nulls(values["crop_size"])
        if crop is None or (isinstance(crop, Mapping) and crop.keys() != {"height", "width"}):
            raise UserError(f"{FILE}: crop_size={crop!r} of do_center_crop: give height and width.")
        steps = steps._replace(crop=external.sides("crop_size", crop))
    if steps.crop and steps.resize:
        whole = steps.resize if isinstance(steps.resize, tuple) else (steps.resize, steps.resize)
        if any(c > r for c, r in zip(steps.crop, whole, strict=True)):
            raise UserError(
                f"{FILE}: a crop of {_times(steps.crop)} pixels from images that are resized to "
                f"{values['size']} has black borders, which are not supported: give a smaller "
                "crop_size."
            )
    return steps


def _size(values: _Values) -> Pair | int:
    """(height, width), or the shorter side."""
    size = _without_nulls(values["size"])
    if isinstance(size, Mapping):
        if size.keys() == {"shortest_edge"}:
            return external.side("shortest_edge", size["shortest_edge"])
        if size.keys() != {"height", "width"}:
            raise UserError(
                f"{FILE}: size={size}; supported are height and width, or shortest_edge alone."
            )
    if type(size) is int and not _flag(values, "default_to_square"):
        return external.side("size", size)
    return external.sides("size", size)


def _without_nulls(size: Any) -> Any:
    if not isinstance(size, Mapping):
        return size
    return {key: x for key, x in size.items() if x is not None}


def _flag(values: _Values, key: str) -> bool:
    return external.flag({key: values[key]}, key)


def _check_padding(values: _Values, steps: Steps) -> None:
    pad = _without_nulls(values.get("pad_size"))
    if not values.get("do_pad") or pad is None:
        return
    if external.sides("pad_size", pad) != steps.output:
        raise UserError(
            f"{FILE}: do_pad to pad_size={pad!r} is not supported: images have to get their size "
            "by being resized and cropped."
        )


def _numbers(values: _Values) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) of pixels in [0, 1], for all steps that compute with them."""
    scale, offset = 255.0, 0.0  # of a pixel in [0, 1]
    if _flag(values, "do_rescale"):
        scale = 255 * external.positive(values, "rescale_factor", 1 / 255)
        scale = 1.0 if abs(scale - 1) < 1e-6 else scale
        offset = 1.0 if values.get("rescale_offset") else 0.0
    mean, std = (_channels(values, f"image_{x}") for x in ("mean", "std"))
    divisor: tuple[float, ...] = (1.0, 1.0, 1.0)
    if values.get("include_top"):  # it is divided once more
        divisor = std
    if not _flag(values, "do_normalize"):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return (
        tuple((offset + m) / scale for m in mean),
        tuple(s * d / scale for s, d in zip(std, divisor, strict=True)),
    )


def _channels(values: _Values, key: str) -> tuple[float, ...]:
    """Three numbers; one is for all."""
    value = values[key]
    if type(value) in (int, float):
        value = [value] * external.RGB
    return external.channels({key: value}, key, ())


def _interpolation(number: Any) -> str:
    """The name of Pillow's number."""
    if type(number) is not int or not 0 <= number < len(models.INTERPOLATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(models.INTERPOLATIONS))
        raise UserError(f"{FILE}: resample={number!r}. There are {known}.")
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
        raise UserError(
            "Hugging Face's processors resize to the shorter side or to a size, and do not pad; "
            f"this model's images are prepared with fit={about.fit!r}, fill={about.padding}."
        )
    if isinstance(about.resize, int):
        size = _shorter(about.resize)
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
