"""A hash of what an image looks like: equal or nearly so for copies of other size or quality.

64 signs of the lowest frequencies of the image's cosine transform, the well-known "pHash"
(Zauner, Implementation and benchmarking of perceptual image hash functions, 2010).
"""

from __future__ import annotations

import numpy as np
from PIL import Image

SIDE = 32  # pixels that an image is reduced to
FREQUENCIES = 8  # in each direction
# Below this the shape of the image, not its picture, decides the signs: one colour, a white page.
LEAST_CONTRAST = 4.0  # standard deviation, of 255


def _cosines() -> np.ndarray:
    """float32 [FREQUENCIES, SIDE]: the rows 1 to 8 of the DCT-II; 0 is the mean, left out."""
    rows = np.arange(1, FREQUENCIES + 1)[:, None]
    return np.cos(np.pi * rows * (2 * np.arange(SIDE) + 1) / (2 * SIDE)).astype(np.float32)


_COSINES = _cosines()
_BITS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def perceptual_hash(gray: Image.Image) -> int | None:
    """64 bits of an image of mode "L"; None if there is too little to see."""
    small = gray.resize((SIDE, SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32)
    if pixels.std() < LEAST_CONTRAST:
        return None
    spectrum = _COSINES @ pixels @ _COSINES.T
    return int(_BITS[(spectrum > np.median(spectrum)).ravel()].sum())
