"""Heads by what a text tower wrote of the classes' names."""

import json

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from tests.messages import refused
from tests.weights.conftest import TOY, randomised
from vit_jax import weights
from vit_jax.convert import convert
from vit_jax.predict import Predictor
from vit_jax.weights.zero_shot import read_labels

pytestmark = pytest.mark.usefixtures("quick_compilation")
CLIP = {"num_classes": 0, "pre_norm": True, "patch_bias": False, "projection": 8}


def vectors(rows=2, width=8):
    drawn = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture
def labels(tmp_path):
    """`labels(scale=7.0)`: a file of two classes; None leaves an array out."""

    def write(**arrays):
        usual = {"names": ["cat", "dog\n"], "embeddings": vectors(), "scale": 10.0}
        arrays = {name: x for name, x in (usual | arrays).items() if x is not None}
        np.savez(tmp_path / "labels.npz", **arrays)
        return tmp_path / "labels.npz"

    return write


@pytest.mark.parametrize("fields", [{}, {"pool": "map", "patch_bias": True, "pre_norm": False}])
def test_logits_are_scaled_cosines(labels, images, fields):
    loaded = randomised("ViT-Ti/4", **(TOY | CLIP | fields))
    own = np.array(loaded.model(images))
    model = weights.with_labels(loaded, labels(bias=-3.0)).model
    cosines = own / np.linalg.norm(own, axis=1, keepdims=True) @ vectors().T
    np.testing.assert_allclose(model(images), 10 * cosines - 3, atol=1e-5)
    assert model.spec.probabilities == "sigmoid"
    again = weights.with_labels(loaded._replace(model=model), labels(embeddings=-vectors())).model
    np.testing.assert_allclose(again(images), -10 * cosines, atol=1e-5)  # other classes


def test_commands(labels, tmp_path, run_python):
    """Prediction by the file, and by the checkpoint that convert makes with it."""
    clip, photo, file = tmp_path / "clip", tmp_path / "photo.png", str(labels())
    weights.save(randomised("ViT-Ti/4", **(TOY | CLIP)), clip, "huggingface")
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(photo)
    flags = ("--checkpoint", str(clip), "--labels", file, "--json")
    done = run_python("-m", "vit_jax", "predict", *flags, str(photo))
    assert done.returncode == 0, done.stderr
    classes = json.loads(done.stdout)["classes"]
    assert {c["name"] for c in classes} == {"cat", "dog\\n"}
    convert(str(clip), str(tmp_path / "run"), to="checkpoint", labels=file)
    ((_, again),) = Predictor(str(tmp_path / "run"))([photo], top_k=2)
    assert again == classes


BIASES = [(None, [10.0] * 2), ([None] * 2, [10.0] * 2), ([-3.0] * 2, [10.0, 11.0])]


@pytest.mark.parametrize(("bias", "scales"), BIASES)
def test_a_table_is_the_same_file(labels, tmp_path, bias, scales):
    columns = {"names": ["cat", "dog\n"], "embeddings": vectors().tolist(), "scale": scales}
    columns |= {} if bias is None else {"bias": bias}
    parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    if len(set(scales)) > 1:
        with refused("labels", "no finite scale"):
            read_labels(tmp_path / "labels.parquet")
        return
    table, arrays = read_labels(tmp_path / "labels.parquet"), read_labels(labels())
    np.testing.assert_array_equal(table.embeddings, arrays.embeddings)
    assert table._replace(embeddings=None) == arrays._replace(embeddings=None)


def test_a_table_without_a_column(tmp_path):
    parquet.write_table(pyarrow.table({"names": ["cat"]}), tmp_path / "labels.parquet")
    with refused("labels", "embeddings, scale"):
        read_labels(tmp_path / "labels.parquet")


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        ({"scale": None}, "scale"),
        ({"names": [1, 2]}, "names"),
        ({"names": ["cat"]}, "1 names"),
        ({"names": ["cat", "cat"]}, "'cat' 2 times"),
        ({"embeddings": 3 * vectors()}, "length 3"),
        ({"embeddings": vectors() * [[1], [np.nan]]}, "length nan"),
        ({"embeddings": ["a", "b"]}, "ValueError"),
        ({"scale": np.inf}, "scale"),
        ({"bias": [1.0, 2.0]}, "bias"),
        ({"embeddings": vectors(width=7)}, "7 numbers"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_files(labels, arrays, name):
    with refused("labels", name):
        weights.with_labels(randomised("ViT-Ti/4", **(TOY | CLIP)), labels(**arrays))


def test_names_of_no_characters(labels):
    damaged = np.array([2**32 - 1, 65], np.uint32).view("<U1")
    with refused("labels", "UnicodeDecodeError"):
        weights.with_labels(randomised("ViT-Ti/4", **(TOY | CLIP)), labels(names=damaged))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_classes": 0},  # a class token, and no projection of it
        {"num_classes": 8},  # a classifier
        {"num_classes": 8, "pool": "map"},
        {"distillation_token": True, "num_classes": 0},
    ],
    ids=str,
)
def test_models_without_shared_features(labels, fields):
    with refused("labels", "SiglipModel"):
        weights.with_labels(randomised("ViT-Ti/4", **(TOY | fields)), labels())


def test_a_classifier_behind_a_projection(labels):
    """Its bias is zero, as that of timm's CLIPs is, but the projection is another layer."""
    loaded = randomised("ViT-Ti/4", **(TOY | CLIP | {"num_classes": 8}))
    loaded.model.head.bias[...] = 0 * loaded.model.head.bias[...]
    with refused("labels", "SiglipModel"):
        weights.with_labels(loaded, labels())


def test_a_resnet_has_none(labels):
    bit = randomised("R50x1", units=(1,), root_width=32, num_classes=0, image_size=24)
    with refused("labels", "SiglipModel"):
        weights.with_labels(bit, labels())
