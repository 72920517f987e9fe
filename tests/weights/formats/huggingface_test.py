"""Hugging Face's ViT and I-JEPA there and back; parity_test.py compares with transformers."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from tests.weights.conftest import params_of
from vit_jax import weights
from vit_jax.models.images import load
from vit_jax.predict import Predictor
from vit_jax.weights.files import from_array, safetensors
from vit_jax.weights.formats import huggingface
from vit_jax.weights.tables import to_theirs

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def photo():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def edit(folder, config=None, lost=()):
    """Changes config.json; drops arrays whose names contain one of `lost`."""
    (folder / "config.json").write_text(json.dumps(config_of(folder) | (config or {})))
    file = folder / "model.safetensors"
    kept = {n: x for n, x in safetensors.read(file).items() if not any(w in n for w in lost)}
    safetensors.write(folder / "new", kept)
    (folder / "new").replace(file)


def test_arrays_with_and_without_a_prefix_are_refused(tmp_path, toy):
    weights.save(toy(), tmp_path / "x", "huggingface")
    file = tmp_path / "x" / "model.safetensors"
    arrays = {name: from_array(np.array(x.read())) for name, x in safetensors.read(file).items()}
    other = from_array(np.full(16, 7, np.float32))
    safetensors.write(file, arrays | {"layernorm.weight": other})
    with refused("vit.layernorm.weight"):
        weights.load(tmp_path / "x")


def test_without_config_json_the_arrays_tell(tmp_path, toy, same):
    for number, fields in enumerate(({}, {"pool": "avg"}, {"qkv_bias": "none"})):
        # 64 channels per head, with its GELU and epsilon, as nothing says otherwise.
        ours = toy(width=64, num_heads=1, gelu="exact", norm_epsilon=1e-12, **fields)
        folder = tmp_path / str(number)
        weights.save(ours, folder, "huggingface")
        again = weights.load(folder / "model.safetensors")
        (folder / "config.json").unlink()
        again = weights.load(folder)
        same(again, ours.model)
        assert again.spec == ours.model.spec


def test_modules_of_transformers_5_under_a_trainers_prefix(tmp_path, toy, same):
    def in_modules(name):
        for module, in_file in huggingface.IN_FILES.items():
            name = name.replace(f".{in_file}.", f".{module}.")
        return "model." + name.replace("encoder.layer.", "layers.")

    ours = toy(num_classes=0, gelu="exact", norm_epsilon=1e-12)
    arrays = to_theirs(huggingface.LAYOUTS["vit"][0], params_of(ours.model))
    safetensors.write(tmp_path / "x", {in_modules(name): x for name, x in arrays.items()})
    same(weights.load(tmp_path / "x", num_heads=2), ours.model)


BIASES = ("query.bias", "key.bias", "value.bias")


@pytest.mark.parametrize(
    ("config", "lost", "message"),
    [
        ({"qkv_bias": True}, BIASES, "qkv_bias=True"),
        ({"qkv_bias": False}, (), "qkv_bias=False"),
        ({}, BIASES[1:2], "0.attention.attention.key.bias"),
        ({}, ("cls_token",), "embeddings.cls_token"),
        ({"model_type": "ijepa"}, (), "embeddings.cls_token"),
    ],
)
def test_what_config_and_arrays_disagree_on(tmp_path, toy, config, lost, message):
    weights.save(toy(), tmp_path / "out", "huggingface")
    edit(tmp_path / "out", config, lost)
    with refused(message):
        weights.load(tmp_path / "out")


def test_several_labels_give_sigmoids(tmp_path, toy, photo):
    ours = toy()
    weights.save(ours, tmp_path / "one", "huggingface")
    weights.save(ours, tmp_path / "several", "huggingface")
    edit(tmp_path / "several", {"problem_type": "multi_label_classification"})
    scores = {}
    for name in ("one", "several"):
        ((_, classes),) = Predictor(str(tmp_path / name))(photo, top_k=3)
        scores[name] = np.array([c["probability"] for c in classes])
    logits = np.asarray(ours.model(load(photo, ours.model.preprocess)[None]))[0]
    np.testing.assert_allclose(
        scores["several"], np.sort(1 / (1 + np.exp(-logits)))[::-1], atol=1e-5
    )
    assert abs(scores["one"].sum() - 1) < 1e-5

    loaded = weights.load_with_info(tmp_path / "several")
    weights.save(loaded, tmp_path / "again", "huggingface")
    assert config_of(tmp_path / "again")["problem_type"] == "multi_label_classification"
    assert "problem_type" not in config_of(tmp_path / "one")
    for to, path in (("timm", "timm"), ("google_npz", "x.npz")):
        with refused("probabilities=sigmoid"):
            weights.save(loaded, tmp_path / path, to)
        headless = weights.load_with_info(tmp_path / "several", head="drop")
        assert headless.model.spec.probabilities == "softmax"


def test_one_class_gives_a_sigmoid(tmp_path, toy):
    ours = toy(num_classes=1)._replace(class_names=("ant",))
    with refused("softmax"):
        weights.save(ours, tmp_path / "out", "huggingface")
    ours = toy(num_classes=1, probabilities="sigmoid")._replace(class_names=("ant",))
    weights.save(ours, tmp_path / "out", "huggingface")
    assert config_of(tmp_path / "out")["problem_type"] == "multi_label_classification"
    edit(tmp_path / "out", {"problem_type": None})
    assert weights.load(tmp_path / "out").spec.probabilities == "sigmoid"


def test_a_classifier_that_is_named_has_to_be_there(tmp_path, toy):
    weights.save(toy(), tmp_path / "out", "huggingface")
    edit(tmp_path / "out", lost=("classifier",))
    with refused("classifier.weight", "classifier.bias"):
        weights.load(tmp_path / "out")
    edit(tmp_path / "out", {"architectures": ["ViTModel"]})
    assert weights.load(tmp_path / "out").num_classes == 0
