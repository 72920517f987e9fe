"""Hugging Face's ViT and I-JEPA there and back; parity_test.py compares with transformers."""

import json

import pytest

from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.files import safetensors

pytestmark = pytest.mark.usefixtures("quick_compilation")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def edit(folder, config=None, lost=()):
    """Changes config.json; drops arrays whose names contain one of `lost`."""
    (folder / "config.json").write_text(json.dumps(config_of(folder) | (config or {})))
    file = folder / "model.safetensors"
    kept = {n: x for n, x in safetensors.read(file).items() if not any(w in n for w in lost)}
    safetensors.write(folder / "new", kept)
    (folder / "new").replace(file)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"pool": "avg"}, "IJepaForImageClassification"),
        ({"pool": "avg", "num_classes": 0}, "IJepaModel"),
        ({"qkv_bias": "none"}, "ViTForImageClassification"),
        ({"pool": "avg", "qkv_bias": "none", "gelu": "exact"}, "IJepaForImageClassification"),
        ({"pool": "cls_avg", "layer_scale": 1.0, "mlp_dim": 32, "qkv_bias": "none"},
         "Dinov2ForImageClassification"),
    ],
    ids=["avg", "avg_headless", "no_bias", "avg_no_bias", "dinov2_no_bias"],
)  # fmt: skip
def test_there_and_back(tmp_path, toy, same, fields, kind):
    ours = toy(**fields)
    weights.save(ours, tmp_path / "out", "huggingface")
    assert config_of(tmp_path / "out")["architectures"] == [kind]
    again = weights.load_with_info(tmp_path / "out")
    same(again.model, ours.model)
    assert again.model.spec == ours.model.spec
    assert again.class_names == ours.class_names


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


BIASES = ("query.bias", "key.bias", "value.bias")


@pytest.mark.parametrize(
    ("config", "lost", "message"),
    [
        ({"qkv_bias": True}, BIASES, "qkv_bias=True, the arrays have False"),
        ({"qkv_bias": None}, BIASES, "put qkv_bias=false there"),
        ({"qkv_bias": False}, (), "qkv_bias=False, the arrays have True"),
        ({}, BIASES[1:2], r"0\.attention\.attention\.key\.bias is missing"),
        ({}, ("cls_token",), r"embeddings\.cls_token is missing"),
        ({"model_type": "ijepa"}, (), "Hugging Face's I-JEPA: .* is missing"),
    ],
)
def test_what_config_and_arrays_disagree_on(tmp_path, toy, config, lost, message):
    weights.save(toy(), tmp_path / "out", "huggingface")
    edit(tmp_path / "out", config, lost)
    with pytest.raises(UserError, match=message):
        weights.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pool": "map"}, "pool=map: write it by .* --to=timm or --to=google_npz"),
        ({"pool": "avg", "pre_logits": True}, "no layer between mean and head.*--to=google_npz"),
        ({"qkv_bias": "query_value"}, "no place for qkv_bias=query_value: write --to=checkpoint"),
    ],
)
def test_what_cannot_be_written(tmp_path, toy, fields, message):
    with pytest.raises(UserError, match=message):
        weights.save(toy(**fields), tmp_path / "out", "huggingface")
    assert not list(tmp_path.iterdir())
