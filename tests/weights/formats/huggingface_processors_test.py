"""preprocessor_config.json; parity_processors_test.py has the pixels of transformers."""

from pathlib import Path

import pytest

from tests.messages import refused
from tests.weights.image_processors import WRITTEN
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface_processors


def read(document, size):
    opened = Opened(Path("folder"), "safetensors", {}, {"model_type": "vit"}, document)
    return huggingface_processors.read(opened, size, any_size=True)


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
