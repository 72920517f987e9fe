"""Maps of images, such as masks and depths: a number for each pixel, in image files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vit_jax.core.errors import UserError

if TYPE_CHECKING:
    from vit_jax.data.source import MapKind

VOID = 255  # of masks, by default, as in PASCAL VOC and Cityscapes
EXTENSIONS = (".png", ".bmp", ".tif", ".tiff")  # formats that lose nothing
# Pillow's modes whose pixels are one number; "P" has numbers of a palette's colours.
_MODES = ("1", "L", "P", "I;16", "I")
_MOST = 2**16 - 1


class BadMap(ValueError):
    """A map that makes its image a bad one."""


def decode(
    data: bytes, kind: MapKind, image_size: tuple[int, int], orientation: int, described: str
) -> bytes:
    """The values of a map in a batch: uint16 [H, W] as bytes, of the image's size.

    orientation: the image's, EXIF: 1..8. BadMap if it cannot be decoded, or is not of this image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF")) as opened:
            mode, size, pages = opened.mode, opened.size[::-1], getattr(opened, "n_frames", 1)
            values = np.asarray(opened) if mode in _MODES else None
    except Exception as error:  # decoders of damaged images raise anything
        raise BadMap(f"its {kind.name} cannot be decoded ({error})") from error
    if values is None:
        raise BadMap(f"its {kind.name} is {mode}, not one number a pixel ({', '.join(_MODES)})")
    if pages != 1:
        raise BadMap(f"its {kind.name} has {pages} pages, not one")
    if orientation != 1:
        raise BadMap(f"its EXIF orientation is {orientation}, its {kind.name}'s is not known")
    if size != tuple(image_size):
        here, there = (f"{h} x {w}" for h, w in (size, image_size))
        raise BadMap(f"its {kind.name} has {here} pixels, not {there}")
    return _numbers(values.astype(np.int64), kind, described).astype(np.uint16).tobytes()


def _numbers(stored: np.ndarray, kind: MapKind, described: str) -> np.ndarray:
    """Stored values -> those of a batch, int64: 0 for `void`, classes from 1. UserError."""
    numbers, most, rule = stored, _MOST, f"not 0 to {_MOST:,}"
    if kind.num_classes is not None:  # those above `void` are one less
        numbers, most = stored + (stored < kind.void), kind.num_classes
        rule = f"neither of {most} classes (input.num_classes) nor input.void={kind.void}"
    numbers = np.where(stored == kind.void, 0, numbers)
    outside = (numbers < 0) | (numbers > most)
    if outside.any():
        raise UserError(f"{described}: its {kind.name} has the value {stored[outside][0]}, {rule}.")
    return numbers
