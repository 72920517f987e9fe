"""The part of preprocessing that belongs to a model's weights: how its images are prepared."""

import dataclasses

# Pillow's methods, in the order of its enum.
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """The steps from a decoded image to the array that a model takes.

    Attributes:
      image_size: (height, width) of the model's input in pixels.
      resize: (height, width) that an image is resized to, or one number: its shorter side. None:
        images already have their size.
      crop: (height, width) of the central crop after that, or None.
      mean, std: for normalisation, of RGB in [0, 1].
      interpolation: for resizing, one of INTERPOLATIONS, or "area", TensorFlow's.
      antialias: whether resizing filters when an image shrinks.
      fit: the meaning of `resize`'s (height, width): "stretch" to exactly these; or keep the
        aspect ratio, "cover": neither side below its number, or "inside": neither above, and a crop
        pads with the mean where the image is smaller.
      longer: rounding of the longer side if `resize` is the shorter one: "nearest", or "down".
      middle: if a crop leaves out an odd number of pixels, the number above and to the left is
        the smaller half ("down"), or the even one of the two nearest to the half ("nearest").
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
        """RGB, 0 to 255, that a crop pads a smaller image with; None: no padding."""
        if self.fit != "inside":
            return None
        return tuple(min(255, max(0, round(255 * x))) for x in self.mean)
