"""Sources that need no data: the digits of the package (see digits.md), and synthetic examples."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.data.order.label_index import Labels, single
from vit_jax.data.source import Example, Source, digest
from vit_jax.data.sources.splits import resolve

_FILE = Path(__file__).with_name("digits.npz")
_NUM_TRAIN = 1437  # 80 %; the file is shuffled, so its first 1,437 digits are the training split


class Digits(Source):
    """Splits `train` (the first 1,437 digits of the file) and `test` (the other 360)."""

    name = "digits"
    num_classes = 10
    class_names = tuple("0123456789")

    def __init__(self, split: str, *, where: str) -> None:
        with np.load(_FILE) as arrays:
            images, labels = arrays["images"], arrays["labels"]
        sizes = {"train": _NUM_TRAIN, "test": len(labels) - _NUM_TRAIN}
        self.part = part = resolve(split, sizes, where=where)
        offset = _NUM_TRAIN if part.name == "test" else 0
        chosen = slice(offset + part.start, offset + part.stop)
        self._first = chosen.start
        self._labels = labels[chosen]
        # Ink from 0 to 16 becomes a grayscale of 0 to 255.
        gray = np.round(images[chosen] * (255 / 16)).astype(np.uint8)
        self._images = [_encoded(Image.fromarray(digit), "PNG") for digit in gray]
        self.num_examples = part.num_examples
        self.fingerprint = digest(images[chosen].tobytes() + self._labels.tobytes())

    def read(self, indices: np.ndarray) -> list[Example]:
        """Examples as PNG files."""
        return [Example(self._images[i], (int(self._labels[i]),)) for i in indices]

    def stored_labels(self) -> Labels:
        """Labels of all digits."""
        return single(self._labels)

    def describe(self, index: int) -> str:
        """The digit's place in the file."""
        return f"{_FILE.name}, digit {self._first + index}"


_DISTINCT_IMAGES = 16  # encoded once; example i shows number i mod 16
_BLOTCHES = 8  # along each side


class Synthetic(Source):
    """Coloured blotches as JPEG files; the class of example i is i mod C."""

    name = "synthetic"

    def __init__(
        self, num_examples: int | None, num_classes: int | None, image_size: tuple[int, int]
    ) -> None:
        """`image_size` is (height, width)."""
        if num_examples is None or num_classes is None:
            raise UserError(
                'input.source="synthetic" has as many examples and classes as the config says: set '
                "input.num_examples and input.num_classes."
            )
        self.num_examples = num_examples
        self.num_classes = num_classes
        self._images = [_image(seed, image_size) for seed in range(_DISTINCT_IMAGES)]
        self.fingerprint = digest(f"{self.name} {num_examples} {num_classes} {image_size}")

    def read(self, indices: np.ndarray) -> list[Example]:
        """Generates the examples; nothing is stored."""
        return [
            Example(self._images[i % _DISTINCT_IMAGES], (int(i % self.num_classes),))
            for i in indices
        ]

    def stored_labels(self) -> Labels:
        """The generated labels."""
        return single(np.arange(self.num_examples) % self.num_classes)

    def describe(self, index: int) -> str:
        """The number of the example."""
        return f"synthetic example {index}"


def _image(seed: int, size: tuple[int, int]) -> bytes:
    height, width = size
    colours = np.random.default_rng(seed).integers(0, 256, (_BLOTCHES, _BLOTCHES, 3), np.uint8)
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    return _encoded(image, "JPEG")


def _encoded(image: Image.Image, file_format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()
