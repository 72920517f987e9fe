"""The part of preprocessing that travels with a model's weights: what its images look like."""

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
      interpolation: of the resizing, one of INTERPOLATIONS, or "area", TensorFlow's.
      antialias: whether the resizing filters where an image shrinks.
      fit: what (height, width) of `resize` mean: "stretch" to exactly these; or in proportion,
        "cover": neither side is below its number, or "inside": neither above, and a crop pads with
        the mean where the image is smaller.
      longer: how the longer side becomes whole where `resize` is the shorter one: the "nearest", or
        cut off: "down".
      middle: of an odd number of pixels that a crop leaves out, the smaller half lies above and to
        the left ("down"), or the even one of the two nearest to the half ("nearest").
    """

    image_size: tuple[int, int]
    resize: tuple[int, int] | int | None
    crop: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"
    antialias: bool = True
    fit: str = "stretch"
    longer: str = "nearest"
    middle: str = "down"

    @property
    def fill(self) -> tuple[int, ...] | None:
        """RGB, 0 to 255, of what a crop puts around a smaller image; None: nothing."""
        if self.fit != "inside":
            return None
        return tuple(min(255, max(0, round(255 * x))) for x in self.mean)
