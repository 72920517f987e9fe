"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels (see digits.md)."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

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
        part = resolve(split, sizes, where=where)
        offset = _NUM_TRAIN if part.name == "test" else 0
        chosen = slice(offset + part.start, offset + part.stop)
        self._first = chosen.start
        self._labels = labels[chosen]
        self._images = [_png(image) for image in images[chosen]]
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


def _png(digit: np.ndarray) -> bytes:
    """Ink from 0 to 16 [8, 8] -> a grayscale PNG file, 0 to 255."""
    gray = np.round(digit * (255 / 16)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(gray).save(file, "PNG")
    return file.getvalue()
