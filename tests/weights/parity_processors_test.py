"""preprocessor_config.json against transformers' own image processors: every pixel."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.weights.image_processors import CASES, ONLY_5, PICTURES, WRITTEN, picture
from vit_jax.models.images import load
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface_processors

pytestmark = pytest.mark.parity
hf = pytest.importorskip("transformers")
OLD = hf.__version__.startswith("4.")
# float32, in another order of computation.
RELATIVE = 2e-6


def opened(document, model_type="vit"):
    return Opened(Path("folder"), "safetensors", {}, {"model_type": model_type}, document)


@pytest.mark.parametrize("name", [*CASES, *([] if OLD else ONLY_5)])
def test_pixels(tmp_path, name):
    document = (CASES | ONLY_5)[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    theirs = hf.AutoImageProcessor.from_pretrained(tmp_path)
    for size in PICTURES:
        image = picture(*size)
        expected = theirs(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        about = huggingface_processors.read(opened(document), expected.shape[:2], any_size=True)
        got = load(image, about)
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model_type", "kind"), [("vit", "ViT"), ("deit", "DeiT"), ("bit", "Bit"), ("dinov2", "Bit")]
)
def test_without_a_type_the_models_decides(tmp_path, model_type, kind):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert type(hf.AutoImageProcessor.from_pretrained(tmp_path)).__name__.startswith(kind)
    named = opened({"image_processor_type": f"{kind}ImageProcessor"})
    read = huggingface_processors.read
    assert read(opened({}, model_type), (224, 224), any_size=True) == read(
        named, (224, 224), any_size=True
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_gives_the_same_pixels(tmp_path, name):
    document = huggingface_processors.write(WRITTEN[name])
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(document))
    theirs = hf.AutoImageProcessor.from_pretrained(tmp_path)
    for size in PICTURES:
        pixels = theirs(picture(*size), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        np.testing.assert_allclose(load(picture(*size), WRITTEN[name]), pixels, atol=1e-6, rtol=0)
