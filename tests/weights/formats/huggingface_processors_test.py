"""Images as preprocessor_config.json says, against pixels that transformers 5.23 made of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.image_processors import CASES, ONLY_5, PICTURES, WRITTEN, picture
from vit_jax.models.images import load
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface_processors

# Two pixels, the mean and the standard deviation of the second picture, by case: written by
# transformers' processors, which parity_processors_test.py compares in full.
PIXELS = json.loads((Path(__file__).parent / "processors.json").read_text())


def read(document, size):
    opened = Opened(Path("folder"), "safetensors", {}, {"model_type": "vit"}, document)
    return huggingface_processors.read(opened, size, any_size=True)


@pytest.mark.parametrize("name", CASES | ONLY_5)
def test_pixels(name):
    image = picture(*PICTURES[1])
    about = read((CASES | ONLY_5)[name], PICTURES[1])
    x = load(image, about)
    found = x[3, 5, 0], x[-4, -6, 1], x.mean(), x.std()
    np.testing.assert_allclose(found, PIXELS[name], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", WRITTEN)
def test_there_and_back(name):
    about = WRITTEN[name]
    assert read(huggingface_processors.write(about), about.image_size) == about


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "image_processor_type"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 40}},
         "shortest_edge"),
        ({"image_processor_type": "CLIPImageProcessor", "size": 24, "crop_size": 32},
         "32 x 32"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "ConvNextImageProcessor"),
        *(({"image_processor_type": "ViTImageProcessor", "size": x}, "size") for x in ({}, 0, [])),
    ],
)  # fmt: skip
def test_what_is_refused(document, message):
    opened = Opened(Path("folder"), "safetensors", {}, {"model_type": "swin"}, document)
    with refused(message):
        huggingface_processors.read(opened, (40, 40), any_size=True)
