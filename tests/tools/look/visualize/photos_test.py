import numpy as np
from PIL import Image

from vit_jax.models import Preprocess
from vit_jax.tools.look.visualize import photos

PREPROCESS = Preprocess((8, 8), (8, 8), None)
CLASSES = ("n01440764 tench, Tinca tinca", "cat", "dog")


def write(file, colour):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), colour).save(file)


def test_classes_are_those_of_folders_and_of_ids_in_names(tmp_path):
    for name in ("cat/a.png", "n01440764/b.png", "n01440764_7.png", "other/c.png", "dog.png"):
        write(tmp_path / name, "red")
    found = photos.find([str(tmp_path)], PREPROCESS, CLASSES)
    assert dict(zip(found.names, found.labels, strict=True)) == {
        "a": 1, "b": 0, "n01440764_7": 0, "c": None, "dog": None,
    }  # fmt: skip
    assert photos.find([str(tmp_path)], PREPROCESS, None).labels == (None,) * 5


def test_pixels_are_those_that_the_model_sees(tmp_path):
    write(tmp_path / "a.png", (255, 0, 51))
    found = photos.find([str(tmp_path)], PREPROCESS, None)
    inputs = np.stack(list(found.inputs()))
    np.testing.assert_allclose(inputs[0, 0, 0], [1, -1, -0.6], atol=1e-6)
    assert found.pixels(inputs)[0, 0, 0].tolist() == [255, 0, 51]
