"""Image files to model inputs with Pillow: what prediction does, without TensorFlow.

The same steps as the evaluation's: decode to RGB, resize (bilinear, antialiased), central crop.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vit_jax.core.errors import UserError
from vit_jax.models import Preprocess

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")


def find(paths: list[str]) -> list[Path]:
    """The image files among `paths`, folders searched, in the order given, sorted inside folders.

    UserError for what is not there, and if no image is found at all.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS)
            found += [p for p in inside if p.is_file() and not p.name.startswith(".")]
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"No image or folder {path}.")
    if not found:
        raise UserError(f"No image in {', '.join(paths)}: looked for {', '.join(EXTENSIONS)}.")
    return found


def load(path: Path, preprocess: Preprocess) -> np.ndarray:
    """A file -> float32 [H, W, 3], normalised. UserError if it is no intact image."""
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            pixels = _rgb(image)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image that can be read: {error}") from error
    return normalise(_cropped(_resized(pixels, preprocess), preprocess), preprocess)


def normalise(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """RGB -> float32 [H, W, 3], mean subtracted, divided by std."""
    scaled = np.asarray(image, np.float32) / 255.0
    mean, std = (np.asarray(x, np.float32) for x in (preprocess.mean, preprocess.std))
    return (scaled - mean) / std


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB; 16-bit grayscale keeps its upper byte, transparency is dropped."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert(
            "RGB"
        )
    if image.mode == "P" or "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _resized(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    wanted = preprocess.resize
    if wanted is None:
        return image
    if isinstance(wanted, int):  # the shorter side
        ratio = wanted / min(image.size)
        width, height = (round(side * ratio) for side in image.size)
    else:
        height, width = wanted
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _cropped(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    if preprocess.crop is None:
        return image
    height, width = preprocess.crop
    if image.width < width or image.height < height:
        raise UserError(
            f"An image of {image.size} is smaller than the central crop {(width, height)}."
        )
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
