import io
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.source import Example, Source
from vit_jax.data.sources.request import Request
from vit_jax.data.sources.table import Digits


class ListSource(Source):
    """A source of given examples."""

    name = "list"
    num_classes = 10
    max_labels = 2
    fingerprint = "0"

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = list(examples)
        self.num_examples = len(self.examples)

    def read(self, indices: np.ndarray) -> list[Example]:
        return [self.examples[i] for i in indices]

    def describe(self, index: int) -> str:
        return f"example {index}"


def encode(pixels: np.ndarray, file_format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format, **options)
    return file.getvalue()


def photo_like(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours, uint8 [height, width, 3], which JPEG preserves."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


@pytest.fixture
def list_source() -> Callable[[Sequence[Example]], ListSource]:
    return ListSource


@pytest.fixture(name="encode")
def encode_fixture() -> Callable[..., bytes]:
    return encode


@pytest.fixture(name="photo_like")
def photo_like_fixture() -> Callable[..., np.ndarray]:
    return photo_like


@pytest.fixture(scope="session")
def digits() -> Source:
    return Digits(Request("train"))


@pytest.fixture
def few() -> Callable[[int], Source]:
    """Makes a source of n gray squares; example i has shade i."""

    def make(count: int) -> Source:
        squares = [np.full((4, 4), i, np.uint8) for i in range(count)]
        return ListSource([Example(encode(x), (i % 10,)) for i, x in enumerate(squares)])

    return make
