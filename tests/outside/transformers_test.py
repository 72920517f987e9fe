"""Images as another version of transformers prepares them, and what is written for both versions.

    pip install --no-deps --target DIR transformers==4.57.1 huggingface_hub==0.36.0 \\
        tokenizers==0.22.1 requests urllib3 charset_normalizer idna certifi
    VIT_JAX_TRANSFORMERS=DIR pytest -m outside tests/outside/transformers_test.py
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.outside.checkouts import PROGRAMS, Checkout
from tests.weights.image_processors import CASES, PICTURES, WRITTEN, picture
from vit_jax.models.images import load
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface_processors

pytestmark = pytest.mark.outside
FOLDER = os.environ.get("VIT_JAX_TRANSFORMERS")
RELATIVE = 2e-6  # float32, in another order of computation


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Their pixels, or the text of an error, by the name of a document and the image."""
    if not FOLDER or not Path(FOLDER).is_dir():
        pytest.skip("VIT_JAX_TRANSFORMERS names a folder with another version: docs/outside.md")
    written = {n: huggingface_processors.write(about) for n, about in WRITTEN.items()}
    documents = CASES | written
    inputs = {f"image {n}": np.asarray(picture(*size)) for n, size in enumerate(PICTURES)}
    inputs["documents"] = np.array([json.dumps(document) for document in documents.values()])
    folder = tmp_path_factory.mktemp("transformers")
    outputs = Checkout(Path(FOLDER)).run(PROGRAMS / "transformers_images.py", inputs, folder)
    places = {name: number for number, name in enumerate(documents)}
    return lambda name, image: outputs[f"{places[name]} {image}"]


def assert_pixels(theirs, name, about_of):
    for number, size in enumerate(PICTURES):
        expected = theirs(name, number)
        assert expected.ndim == 3, expected
        got = load(picture(*size), about_of(expected.shape[:2]))
        assert np.abs(got - expected).max() <= RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("name", CASES)
def test_pixels(theirs, name):
    opened = Opened(Path("folder"), "safetensors", {}, {"model_type": "vit"}, CASES[name])
    assert_pixels(
        theirs, name, lambda size: huggingface_processors.read(opened, size, any_size=True)
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(theirs, name):
    assert_pixels(theirs, name, lambda _: WRITTEN[name])
