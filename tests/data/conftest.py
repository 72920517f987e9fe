import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import files
from vit_jax.data.source import Example, Request, Source
from vit_jax.data.sources.table import Digits


class ListSource(Source):
    """A source of given examples."""

    name = "list"
    num_classes = 10
    max_labels = 2
    fingerprint = "0"

    def __init__(self, examples):
        self.examples = list(examples)
        self.num_examples = len(self.examples)

    def read(self, indices):
        return [self.examples[i] for i in indices]

    def describe(self, index):
        return f"example {index}"


def encode(pixels, file_format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format, **options)
    return file.getvalue()


def photo_like(height, width, seed=0):
    """Smooth colours, uint8 [height, width, 3], which JPEG preserves."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


@pytest.fixture
def list_source():
    return ListSource


@pytest.fixture(name="encode")
def encode_fixture():
    return encode


@pytest.fixture(name="photo_like")
def photo_like_fixture():
    return photo_like


@pytest.fixture(scope="session")
def digits():
    return Digits(Request("train"))


@pytest.fixture
def few():
    """Makes a source of n gray squares; example i has shade i."""

    def make(count):
        squares = [np.full((4, 4), i, np.uint8) for i in range(count)]
        return ListSource([Example(encode(x), (i % 10,)) for i, x in enumerate(squares)])

    return make


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(files, "RETRY_SECS", (0, 0))
