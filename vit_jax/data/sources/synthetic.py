"""Synthetic examples, for plans, benchmarks and tests without data."""

import io

import numpy as np
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.data.order.label_index import Labels, single
from vit_jax.data.source import Example, Source, digest

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
    file = io.BytesIO()
    Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()
