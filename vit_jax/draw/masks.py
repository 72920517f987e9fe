"""Masks as pictures: a palette of classes, and their colours over the image."""

import numpy as np
from PIL import Image

from vit_jax.core.arrays import encode

VOID = 255  # the value of a pixel of no class
_STRENGTH = 0.6  # of colours over an image


def palette() -> np.ndarray:
    """Colours of 256 classes, uint8 [256, 3]: those of PASCAL VOC, where class 0 is black.

    Bit i of a class is bit 7 - i // 3 of red, green or blue, in turns.
    """
    classes = np.arange(256)
    bits = [[(classes >> (3 * i + c) & 1) << (7 - i) for i in range(8)] for c in range(3)]
    return np.sum(bits, axis=1).T.astype(np.uint8)


def png(mask: np.ndarray) -> bytes:
    """Classes from 0 [H, W] -> a PNG file with the palette; of more than 256 classes in 16 bits."""
    if mask.max() > VOID:
        image = Image.fromarray(mask.astype(np.uint16))
    else:
        image = Image.fromarray(mask.astype(np.uint8))
        image.putpalette(palette().tobytes())
    return encode(image, "PNG")


def overlay(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3], classes from 0 [H, W], VOID for none -> uint8 [H, W, 3]."""
    colours = palette()[mask % 256]
    mixed = (1 - _STRENGTH) * pixels + _STRENGTH * colours
    return np.where((mask == VOID)[..., None], pixels, mixed.astype(np.uint8))
