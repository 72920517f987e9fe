"""Documents of preprocessor_config.json as people's folders have them, and images to prepare."""

import numpy as np
from PIL import Image

from vit_jax.models import Preprocess

SHORTER, SQUARE = {"shortest_edge": 48}, {"height": 40, "width": 40}
CROP = {"do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def of(kind, **values):
    return {"image_processor_type": f"{kind}ImageProcessor", **values}


# What transformers 4 reads as version 5 does, by name.
CASES = {
    "vit": of("ViT"),
    "vit_extractor": {"feature_extractor_type": "ViTFeatureExtractor", "size": 40, "resample": 2},
    "vit_list": of("ViT", size=[40, 36]),
    "vit_lanczos": of("ViT", size=SQUARE, resample=1),
    "vit_one_mean": of("ViT", size=SQUARE, image_mean=0.4, image_std=0.3),
    "vit_rescale": of("ViT", size=SQUARE, rescale_factor=1 / 127.5, do_normalize=False),
    "vit_rescale_and_normalise": of("ViT", size=SQUARE, rescale_factor=1 / 127.5),
    "vit_levels": of("ViT", size=SQUARE, do_rescale=False, do_normalize=False),
    "vit_no_normalize": of("ViT", size=SQUARE, do_normalize=False),
    "deit": of("DeiT"),
    "deit_extractor": {
        "feature_extractor_type": "DeiTFeatureExtractor", "size": 48, "crop_size": 32,
        "do_center_crop": True, "resample": 3, **IMAGENET,
    },
    "deit_no_crop": of("DeiT", size=SQUARE, do_center_crop=False, **IMAGENET),
    "bit": of("Bit"),
    "bit_number": of("Bit", size=48, crop_size=32, **IMAGENET),
    "bit_stretched": of("Bit", size={"height": 48, "width": 40}, **CROP),
    "bit_no_rescale": of("Bit", size=SHORTER, **CROP, do_rescale=False),
    "clip": of("CLIP"),
    "clip_extractor": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 40,
                       "crop_size": 40, "resample": 3},
    "chinese_clip": of("ChineseCLIP", size=SQUARE, do_center_crop=False),
    "clip_not_resized": of("CLIP", do_resize=None, size=None, **CROP),
    "bit_not_normalised": of("Bit", size=SHORTER, **CROP, do_normalize=None),
    "siglip": of("Siglip"),
    "blip": of("Blip", size=SQUARE),
}  # fmt: skip
# What version 4 refuses, or reads in another way.
ONLY_5 = {
    "vit_crop": of("ViT", size={"height": 48, "width": 48}, **CROP),
    "vit_shorter": of("ViT", size=SHORTER, **CROP),
    "vit_number_is_shorter": of("ViT", size=48, default_to_square=False, **CROP),
    "vit_fast": {"image_processor_type": "ViTImageProcessorFast", "size": SQUARE, "do_pad": None},
    "chinese_clip_defaults": of("ChineseCLIP"),
}

NORMALISED = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# Every kind of preparation that is written.
WRITTEN = {
    "whole": Preprocess((40, 40), (40, 40)),
    "rectangle": Preprocess((40, 36), (40, 36), interpolation="bicubic"),
    "shorter": Preprocess((40, 40), 48, (40, 40), **NORMALISED, longer="down"),
    "stretched": Preprocess((40, 40), (48, 52), (40, 40), **NORMALISED),
    "cropped": Preprocess((40, 40), None, (40, 40), **NORMALISED),
}


def picture(height, width):
    """A smooth image with all frequencies that resizing sees, from a formula."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    waves = np.sin((x * (c + 1) + y * y / 50) / 9) + np.cos((y + x * x / 90) / (7 + c))
    return Image.fromarray(np.uint8(np.round(127.5 + 63 * waves)))


PICTURES = ((300, 420), (421, 299), (451, 451))
