"""Hugging Face's Dinov2 format, without transformers; parity_dino_test.py compares with it."""

import json

import numpy as np
import pytest

from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.files import detect_format, of_array, safetensors

pytestmark = pytest.mark.usefixtures("quick_compilation")
DINOV2 = {"layer_scale": 0.1, "gelu": "exact", "num_classes": 0, "mlp_dim": 32}
GATED = {**DINOV2, "mlp": "swiglu", "registers": 3}


HEAD = {"num_classes": 3, "pool": "cls_avg"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [DINOV2, GATED, DINOV2 | HEAD, GATED | HEAD],
    ids=["plain", "gated", "plain_head", "gated_head"],
)
def test_there_and_back_to_the_same_bits(tmp_path, toy, same, images, fields):
    ours = toy(**fields)
    weights.save(ours, tmp_path / "out", "huggingface")
    described = weights.load_with_info(tmp_path / "out")
    assert described.class_names == ours.class_names
    again = described.model
    same(again, ours.model)
    assert again.preprocess == ours.model.preprocess
    np.testing.assert_array_equal(again(images), ours.model(images))


def test_registers_and_tables_at_another_size(tmp_path, toy):
    weights.save(toy(**GATED), tmp_path / "out", "huggingface")
    larger = weights.load(tmp_path / "out", image_size=16)
    assert larger.tokens(np.zeros((1, 16, 16, 3), np.float32)).shape == (1, 1 + 3 + 16, 16)


@pytest.mark.parametrize("to", ["huggingface", "timm", "google_npz"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"registers": 3}, "registers=3"),
        ({**DINOV2, "mlp": "geglu"}, "mlp=geglu"),
        ({**GATED, "mlp_dim": 25}, "mlp=swiglu, registers=3"),
        ({"position_embedding": "learned_2d", "qk_norm": True}, "position_embedding=learned_2d"),
        ({"position_embedding": "learned_2d", "qk_norm": True}, "qk_norm=True"),
        ({"position_embedding": "none"}, "position_embedding=none"),
        ({"position_at": "layers"}, "position_at=layers"),
        ({"pool": "cls_avg"}, "pool=cls_avg"),
    ],
)
def test_fields_without_a_place_are_not_written(tmp_path, toy, to, fields, message):
    with pytest.raises(UserError, match=f"has no place for .*{message}"):
        weights.save(toy(**fields), tmp_path / "x.npz", to)
    assert not list(tmp_path.iterdir())


def edit_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 24}, "have 10 positions"),
        ({"num_attention_heads": None}, "num_attention_heads is not stated, which means 12"),
        ({"qkv_bias": False}, "qkv_bias=False, the arrays have True"),
        ({"hidden_act": "gel"}, "Did you mean 'gelu'"),
    ],
)
def test_impossible_configs_are_refused(tmp_path, toy, values, message):
    weights.save(toy(**DINOV2), tmp_path / "out", "huggingface")
    edit_config(tmp_path / "out", **values)
    with pytest.raises(UserError, match=message):
        weights.load(tmp_path / "out")


def test_missing_arrays_and_heads_are_reported(tmp_path, toy):
    weights.save(toy(**GATED), tmp_path / "out", "huggingface")
    arrays = dict(detect_format.open_weights(tmp_path / "out").tensors)
    arrays = {name: x for name, x in arrays.items() if "layernorm" not in name}
    in_memory = {name: of_array(np.array(x.read())) for name, x in arrays.items()}
    safetensors.write(tmp_path / "out" / "model.safetensors", in_memory)
    with pytest.raises(UserError, match=r"layernorm\.weight is missing"):
        weights.load(tmp_path / "out")
    name = "embeddings.cls_token"
    safetensors.write(
        tmp_path / "out" / "model.safetensors", in_memory | {"classifier.bias": in_memory[name]}
    )
    with pytest.raises(UserError, match=r"classifier\.bias has the shape"):
        weights.load(tmp_path / "out")
