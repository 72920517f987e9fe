"""What a model's images must look like: the part of preprocessing that travels with its weights."""

from __future__ import annotations

import dataclasses

# Pillow's, in the order of its numbers.
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """From a decoded image to the array that a model takes.

    Attributes:
      image_size: (height, width) in pixels of the model's input.
      resize: (height, width) that an image is resized to, or one number: its shorter side. None:
        images already have their size.
      crop: (height, width) of the central crop after that, or None.
      mean, std: of RGB in [0, 1], subtracted and divided by.
      interpolation: of the resizing, one of INTERPOLATIONS; filtered where it shrinks.
    """

    image_size: tuple[int, int]
    resize: tuple[int, int] | int | None
    crop: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"
