"""What docs/export.md says to those who have the exported file alone."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax import models
from vit_jax.models import images

PAGE = Path(__file__).parents[3] / "docs" / "export.md"


@pytest.fixture
def prepare():
    """The function of the page."""
    source = re.search(r"^def prepare\(.*?(?=^\S)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names = {"np": np, "Image": Image, "ImageOps": ImageOps}
    exec(source[0], names)
    return names["prepare"]


@pytest.mark.parametrize("fields", [{"fit": "cover"}, {"fit": "inside"}, {"antialias": False}])
def test_its_program_takes_no_other_preparations(prepare, fields):
    with pytest.raises(AssertionError):
        prepare("photo.png", dataclasses.asdict(models.Preprocess((48, 48), (57, 57), **fields)))


@pytest.mark.parametrize("size", [(500, 375), (375, 501), (61, 64), (224, 224), (1000, 333)])
@pytest.mark.parametrize(
    "fields",
    [
        {"resize": 57, "longer": "down", "middle": "nearest", "interpolation": "bicubic"},
        {"resize": 61, "interpolation": "lanczos"},
        {"resize": (48, 48), "crop": None},
        {"resize": (64, 72), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    ],
)
def test_its_program_prepares_photos_as_the_model_has_them(tmp_path, prepare, size, fields):
    about = models.Preprocess((48, 48), **{"crop": (48, 48), **fields})
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    prepared = prepare(tmp_path / "photo.png", json.loads(json.dumps(dataclasses.asdict(about))))
    np.testing.assert_allclose(prepared[0], images.load(tmp_path / "photo.png", about), atol=1e-6)
