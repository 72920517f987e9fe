"""Hugging Face's Dinov2 and DINOv3, without transformers; parity_dino_test.py compares with it."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.schema import fields as declared
from vit_jax.models import Preprocess
from vit_jax.weights.files import Tensor, detect_format, from_array, safetensors
from vit_jax.weights.formats import dino, understand
from vit_jax.weights.tables import to_theirs

pytestmark = pytest.mark.usefixtures("quick_compilation")
DINOV2 = {"layer_scale": 0.1, "gelu": "exact", "num_classes": 0, "mlp_dim": 32}
GATED = {**DINOV2, "mlp": "swiglu", "registers": 3}
HEAD = {"num_classes": 3, "pool": "cls_avg"}
DINOV3 = {
    "layer_scale": 0.1, "gelu": "exact", "num_classes": 0, "registers": 4, "norm_epsilon": 1e-5,
    "position_embedding": "rotary_2d", "qkv_bias": "query_value",
}  # fmt: skip
GATED_DINOV3 = {**DINOV3, "mlp": "swiglu"}
BARE = {**GATED_DINOV3, "qkv_bias": "none", "dense_bias": False, "registers": 0}


@pytest.fixture
def written(tmp_path, toy):
    """`written(**fields)`: a folder with such a model."""

    def make(**fields):
        weights.save(toy(**fields), tmp_path / "out", "huggingface")
        return tmp_path / "out"

    return make


def edit(folder, name="config.json", /, **values):
    file = folder / name
    document = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: x for key, x in document.items() if x is not ...}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [DINOV2, GATED, DINOV2 | HEAD, GATED | HEAD],
    ids=["plain", "gated", "plain_head", "gated_head"],
)
def test_dinov2_there_and_back_to_the_same_bits(tmp_path, toy, same, images, fields):
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
        ({"registers": 3, "pool": "map"}, "registers=3"),
        ({**DINOV2, "mlp": "geglu"}, "mlp=geglu"),
        ({**GATED, "mlp_dim": 25}, "mlp=swiglu"),
        ({"position_embedding": "learned_2d", "qk_norm": True}, "position_embedding=learned_2d"),
        ({"position_embedding": "learned_2d", "qk_norm": True}, "qk_norm=True"),
        ({"position_embedding": "none"}, "position_embedding=none"),
        ({"position_at": "layers"}, "position_at=layers"),
        ({"pool": "cls_avg"}, "pool=cls_avg"),
    ],
)
def test_fields_without_a_place_are_not_written(tmp_path, toy, to, fields, message):
    with refused(message):
        weights.save(toy(**fields), tmp_path / "x.npz", to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 24}, "image_size=24"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"qkv_bias": False}, "qkv_bias=False"),
        ({"hidden_act": "gel"}, "'gelu'"),
    ],
)
def test_dinov2_impossible_configs_are_refused(tmp_path, toy, values, message):
    weights.save(toy(**DINOV2), tmp_path / "out", "huggingface")
    edit(tmp_path / "out", **values)
    with refused(message):
        weights.load(tmp_path / "out")


def test_missing_arrays_and_heads_are_reported(tmp_path, toy):
    weights.save(toy(**GATED), tmp_path / "out", "huggingface")
    arrays = dict(detect_format.open_weights(tmp_path / "out").tensors)
    arrays = {name: x for name, x in arrays.items() if "layernorm" not in name}
    in_memory = {name: from_array(np.array(x.read())) for name, x in arrays.items()}
    safetensors.write(tmp_path / "out" / "model.safetensors", in_memory)
    with refused("layernorm.weight"):
        weights.load(tmp_path / "out")
    name = "embeddings.cls_token"
    safetensors.write(
        tmp_path / "out" / "model.safetensors", in_memory | {"classifier.bias": in_memory[name]}
    )
    with refused("classifier.bias"):
        weights.load(tmp_path / "out")


@pytest.mark.parametrize(
    "fields",
    [DINOV3, GATED_DINOV3, BARE, {**DINOV3, "mlp": "geglu", "qkv_bias": "all"}],
    ids=["plain", "gated", "bare", "geglu"],
)
def test_dinov3_there_and_back_to_the_same_bits(tmp_path, toy, same, fields):
    ours = toy(**fields, image_size=(12, 8))
    weights.save(ours, tmp_path / "out", "huggingface")
    again = weights.load(tmp_path / "out")
    same(again, ours.model)
    assert again.preprocess == ours.model.preprocess
    # A SwiGLU has no GELU, and its file does not mention one.
    assert dataclasses.replace(again.spec, gelu="exact") == ours.model.spec


@pytest.mark.parametrize("name", [name for name in models.available() if "dinov3" in name])
def test_released_sizes_get_their_names(name):
    """Sizes are read from arrays of these shapes, which take no memory."""
    make = lambda: models.create(name, num_classes=0, image_size=224, rngs=nnx.Rngs(0), scan=True)
    model = nnx.eval_shape(make)
    shapes = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    params = {n: np.broadcast_to(np.float32(0), x.shape) for n, x in shapes.items()}
    layout = dino.DINOV3.layout_for(model.spec)
    arrays = to_theirs(layout, params)
    config = dino.DINOV3.documents(model.spec, 0, None, model.preprocess)["config.json"]
    read = understand(detect_format.Opened(Path("x"), "safetensors", arrays, config, None))
    assert (read.name, read.spec) == (name, models.spec(name))


def test_released_config(written):
    """Only the released config's explicit fields; the rest are DINOv3ViTConfig's defaults."""
    folder = written(**DINOV3)
    keys = ("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "rope_theta")
    edit(folder, **dict.fromkeys((*keys, "layer_norm_eps", "hidden_act", "layerscale_value"), ...))
    edit(folder, pos_embed_rescale=2.0, drop_path_rate=0.1, attention_dropout=0.1)
    assert weights.load(folder).spec == models.spec(
        "ViT-B/4-dinov3", depth=2, width=16, mlp_dim=24, num_heads=2, layer_scale=1.0
    )


PROCESSOR = {
    "size": {"height": 24, "width": 16}, "resample": 3, "do_center_crop": None, "crop_size": None,
    "image_mean": [0.43, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143],
}  # fmt: skip


def test_images_are_as_the_processor_says(written):
    """The model takes any size: that of config.json counts only if there is no other."""
    folder = written(**DINOV3)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(PROCESSOR))
    mean, std = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)
    about = Preprocess((24, 16), (24, 16), None, mean, std, "bicubic")
    assert weights.load(folder).preprocess == about
    assert weights.load(folder, image_size=12).preprocess.image_size == (12, 12)

    cropped = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": 16}
    file.write_text(json.dumps(PROCESSOR | cropped))
    assert weights.load(folder).preprocess == Preprocess(
        (16, 16), 20, (16, 16), mean, std, "bicubic", longer="down"
    )
    file.unlink()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert weights.load(folder).preprocess == Preprocess((12, 12), (12, 12), None, mean, std)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"query_bias": False}, "query_bias=False"),
        ({"mlp_bias": False}, "mlp_bias=False"),
        ({"rope_theta": 10_000.0}, "rope_theta=10000"),
        ({"rope_theta": "x"}, "rope_theta='x'"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"hidden_act": "silu", "use_gated_mlp": True}, "layer.0.mlp.gate_proj.weight"),
        ({"use_gated_mlp": 1}, "use_gated_mlp=1"),
        ({"key_bias": True}, "layer.1.attention.k_proj.bias"),
        ({"proj_bias": False, "mlp_bias": False}, "o_proj.bias"),
        ({"layerscale_value": 0}, "layerscale_value=0"),
        ({"layer_norm_eps": 2}, "norm_epsilon=2"),
        ({"num_attention_heads": 16}, "width=16"),
        ({"model_type": "dinov3_convnext"}, "'dinov3_convnext'"),
    ],
)
def test_dinov3_impossible_configs_are_refused(written, values, message):
    folder = written(**DINOV3)
    edit(folder, **values)
    with refused(message):
        weights.load(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": {"height": 12, "width": 18}}, "12 x 18"),
        ({"size": {"shortest_edge": 12}}, "shortest_edge"),
        ({"size": "large"}, "size='large'"),
        ({"do_rescale": 0}, "do_rescale=0"),
    ],
)
def test_impossible_processors_are_refused(written, values, message):
    folder = written(**DINOV3)
    edit(folder, "preprocessor_config.json", **values)
    with refused(message):
        weights.load(folder)


def test_timms_dinov3_is_refused(tmp_path, toy):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "out", "timm")
    edit(tmp_path / "out", architecture="vit_small_patch16_dinov3.lvd1689m")
    with refused():
        weights.load(tmp_path / "out")


STRANGE = (None, True, -1, 0, 0.5, 10**30, float("nan"), "", "x", [], [1, 2, 3], {"x": 1}, ...)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_every_entry_may_be_wrong(written, name):
    """A wrong entry gives a model with other fields, or one message."""
    folder = written(**DINOV3)
    text = (folder / name).read_text()
    refused = 0
    for key in json.loads(text):
        for value in STRANGE:
            (folder / name).write_text(text)
            edit(folder, name, **{key: value})
            try:
                weights.checkpoint_info(folder)
            except UserError:
                refused += 1
    assert refused > 30


def test_every_array_is_needed_in_its_shape(written):
    folder = written(**GATED_DINOV3)
    tensors = dict(detect_format.open_weights(folder).tensors)
    arrays = {name: from_array(np.array(x.read())) for name, x in tensors.items()}
    file = folder / "model.safetensors"
    for name, one in arrays.items():
        if name.endswith("mask_token"):
            continue
        other = Tensor((*one.shape, 5), one.dtype, lambda one=one: np.stack([one.read()] * 5, -1))
        for changed in ({name: other}, {f"x.{name}": one}):
            rest = {n: x for n, x in arrays.items() if n != name}
            safetensors.write(file, rest | changed)
            with pytest.raises(UserError) as error:
                weights.checkpoint_info(folder)
            assert name in str(error.value)


@pytest.mark.parametrize(
    ("fields", "to", "message"),
    [
        ({"num_classes": 3}, "huggingface", "--head=drop"),
        ({"pool": "avg"}, "huggingface", "rotary_2d"),
        ({"layer_scale": 0.0}, "huggingface", "registers=4"),
        ({"qk_norm": True}, "huggingface", "qk_norm=True"),
        ({}, "timm", "rotary_2d"),
    ],
)
def test_other_models_are_not_written(tmp_path, toy, fields, to, message):
    with refused(message):
        weights.save(toy(**DINOV3 | fields), tmp_path / "x", to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fields", [DINOV2, DINOV3], ids=["dinov2", "dinov3"])
def test_a_new_field_that_weights_are_trained_with_is_not_written(
    tmp_path, toy, monkeypatch, fields
):
    """Dropout stands for it: it is declared as such a field is, its default alone elsewhere."""
    of = declared.of
    new = lambda spec: dataclasses.replace(of(spec)["dropout"], elsewhere=(0.0,))
    monkeypatch.setattr(declared, "of", lambda spec: of(spec) | {"dropout": new(spec)})
    with refused("dropout=0.1"):
        weights.save(toy(**fields, dropout=0.1), tmp_path / "x", "huggingface")


def test_sizes_of_another_model_are_reported_at_once(written):
    folder = written(**DINOV3)
    stated = {
        "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 3, "patch_size": 8,
        "num_channels": 4, "intermediate_size": 48, "num_register_tokens": 5,
    }  # fmt: skip
    edit(folder, **stated)
    with refused() as error:
        weights.load(folder)
    lines = str(error.value).splitlines()[1:]
    assert [line.split("=")[0].strip() for line in lines] == list(stated)
