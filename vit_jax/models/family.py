"""The common parts of all model families: fields, how images are prepared, names."""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from vit_jax.core import errors
from vit_jax.core.schema.constraints import Constraint, multiple_rule
from vit_jax.core.schema.fields import ANY, IN_SHAPES, field
from vit_jax.models.layers.stack import StackSpec

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
      mean, std: for normalisation, of each channel or one for all; whole numbers are in [0, 1].
      interpolation: for resizing, one of INTERPOLATIONS, or "area", TensorFlow's.
      antialias: whether resizing filters when an image shrinks.
      fit: the meaning of `resize`'s (height, width): "stretch" to exactly these; or keep the
        aspect ratio, "cover": neither side below its number, or "inside": neither above.
      longer: rounding of the longer side if `resize` is the shorter one: "nearest", or "down".
      middle: if a crop leaves out an odd number of pixels, the number above and to the left is
        the smaller half ("down"), or the even one of the two nearest to the half ("nearest").
      channels, dtype: of decoded images; others than 3 and "uint8" are arrays (core/arrays.py).
      fill: RGB, 0 to 255, that a crop pads a smaller image with. None: the mean if `fit` is
        "inside", else a smaller image is refused.
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
    fill: tuple[int, ...] | None = None
    channels: int = 3
    dtype: str = "uint8"

    @property
    def padding(self) -> tuple[int, ...] | None:
        """RGB, 0 to 255, that a crop pads a smaller image with; None: no padding."""
        if self.fill is not None or self.fit != "inside":
            return self.fill
        return tuple(min(255, max(0, round(255 * x))) for x in self.mean)


def rule(field: str, is_broken: Callable[[Any], Any], sentence: str) -> Constraint:
    """A constraint of a model's fields; is_broken: spec -> whether it is."""
    return Constraint(f"model.{field}", lambda config: is_broken(config.model), sentence)


def multiple(field: str, divisor: Callable[[Any], int], sentence: str) -> Constraint:
    """A constraint of a field that `divisor(spec)` has to divide."""
    return multiple_rule(f"model.{field}", lambda config: divisor(config.model), sentence)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec(StackSpec):
    """The fields of every model."""

    channels: int = field(
        3,
        "of the images [what the data have; 3, red, green and blue, without data]",
        bounds=(1, 2**12),
        trained=IN_SHAPES,
    )
    head_bias: float = field(
        0.0, "its initial value [0]; -10 for sigmoid losses over many classes", bounds=(-1e4, 1e4)
    )
    # What logits become: "sigmoid" of weights whose images have several labels.
    probabilities: str = field(
        "softmax",
        choices=("softmax", "sigmoid"),
        elsewhere={"huggingface": ANY, "timm": ("softmax",), "google_npz": ("softmax",)},
    )

    constraints: ClassVar[tuple[Constraint, ...]] = ()  # rules for fields together, by `rule`

    def check(self) -> None:
        """Raises UserError for fields that cannot be combined."""
        for constraint in self.constraints:
            constraint.check(types.SimpleNamespace(model=self))

    def takes_size(self, size: tuple[int, int], image_size: tuple[int, int]) -> bool:
        """Whether a model for images of `image_size` takes those of `size`; (height, width)."""
        return True

    def check_images(self, images: Any, image_size: tuple[int, int]) -> None:
        """Raises UserError unless a model for `image_size` takes these, by shape and dtype."""
        shape: Any = getattr(images, "shape", None)
        dtype: Any = getattr(images, "dtype", None)
        fits = shape is not None and len(shape) == 4 and shape[0] != 0
        fits = fits and shape[3] == self.channels and jnp.issubdtype(dtype, jnp.floating)
        if fits and (shape[1:3] == image_size or self.takes_size(shape[1:3], image_size)):
            return
        height, width = image_size
        raise errors.UserError(
            f"This model takes float32 images [B, {height}, {width}, {self.channels}], normalised "
            f"as model.preprocess says, not {_form(images)}; vit_jax.predict prepares files and "
            "uint8."
        )


def _form(images: Any) -> str:
    shape = getattr(images, "shape", None)
    return type(images).__name__ if shape is None else f"{images.dtype} {list(shape)}"


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Raises UserError for numbers that are not those of `depth` layers, from 0."""
    if unknown := [layer for layer in layers if layer not in range(depth)]:
        raise errors.UserError(f"No layer {unknown[0]}: the model has layers 0 to {depth - 1}.")


@dataclasses.dataclass(frozen=True)
class Family:
    """One file of models.

    Attributes:
      kind: for messages, such as "A ViT".
      form: the form of its names, for messages.
      published: the published names.
      spec: dataclass of its fields, with the methods of ViTSpec on valid combinations and costs.
      named: a name -> its fields; None for a name of another form.
      module: (spec, num_classes=, image_size=, preprocess=, rngs=) -> module.
    """

    kind: str
    form: str
    published: tuple[str, ...]
    spec: type
    named: Callable[[str], dict[str, Any] | None]
    module: Callable[..., Any]
