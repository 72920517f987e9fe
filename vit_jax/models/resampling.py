"""Images of another size as TensorFlow makes them and Pillow does not, in NumPy: for prediction.

Each side is resized by a matrix whose rows are the weights of an output pixel.
"""

from __future__ import annotations

import numpy as np


def resized(pixels: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [h, w, 3], `size` being (height, width).

    method: "area", the mean of what an output pixel covers; or a kernel, which samples the image
    also where it shrinks: "bilinear", "bicubic" (Keys, a = -1/2), "lanczos" (of three pixels).
    """
    rows, columns = (
        _weights(before, after, method)
        for before, after in zip(pixels.shape[:2], size, strict=True)
    )
    wide = np.einsum("wW,HWc->Hwc", columns, pixels.astype(np.float32), optimize=True)
    exact = np.einsum("hH,Hwc->hwc", rows, wide, optimize=True)
    return np.clip(np.floor(exact + 0.5), 0, 255).astype(np.uint8)


def _weights(before: int, after: int, method: str) -> np.ndarray:
    """float32 [after, before]; rows sum to 1."""
    ratio = before / after
    place, pixel = np.arange(after)[:, None], np.arange(before)[None]
    if method == "area":
        end = np.minimum((place + 1) * ratio, pixel + 1)
        weights = np.maximum(end - np.maximum(place * ratio, pixel), 0)
    else:
        weights = KERNELS[method](np.abs((place + 0.5) * ratio - 0.5 - pixel))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _bicubic(x: np.ndarray) -> np.ndarray:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)


# By their distance from a pixel's centre in pixels.
KERNELS = {"bilinear": _bilinear, "bicubic": _bicubic, "lanczos": _lanczos}
