"""Checkpoints of trainings by their authors: the model in them comes in, and goes out again."""

import dataclasses
import json

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import TOY, edit, params_of, randomised, zeros_of
from vit_jax import weights
from vit_jax.models import Preprocess
from vit_jax.weights.files import from_array, safetensors
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import authors, understand
from vit_jax.weights.tables import packed, to_theirs

ROW = from_array(np.ones(3, np.float32))


def toy_arrays(folder, **fields):
    """Arrays of a toy ViT without a head, by timm's names."""
    usual = TOY | {"num_classes": 0, "gelu": "exact", "norm_epsilon": 1e-6}
    weights.save(randomised("ViT-Ti/4", **(usual | fields)), folder, "timm")
    return safetensors.read(folder / "model.safetensors")


def under(prefix, arrays):
    return {prefix + name: x for name, x in arrays.items()}


SAVED = {
    "MAE": lambda a: a | {"mask_token": ROW, "decoder_embed.weight": ROW, "decoder_norm.bias": ROW},
    "DINO": lambda a: (
        under("backbone.", a) | {"head.mlp.0.weight": ROW, "head.last_layer.weight_g": ROW}
    ),
    "DINO's student": lambda a: under(
        "module.", under("backbone.", a) | {"head.last_layer.weight_v": ROW}
    ),
    "MoCo v3": lambda a: (
        under("module.base_encoder.", a | {"head.0.weight": ROW})
        | under("module.momentum_encoder.", a)
        | {"module.predictor.0.weight": ROW}
    ),
}


@pytest.mark.parametrize("kind", SAVED)
def test_what_a_training_saves_beside_its_model(tmp_path, capsys, kind):
    heads = 12 if kind == "MoCo v3" else 2
    arrays = toy_arrays(tmp_path / "toy", width=48, num_heads=heads)
    safetensors.write(tmp_path / "x.safetensors", SAVED[kind](arrays))
    loaded = weights.load_with_info(
        tmp_path / "x.safetensors", num_heads=None if kind == "MoCo v3" else 2
    )
    assert loaded.model.spec.num_heads == heads
    said = capsys.readouterr().err
    title = kind.removesuffix("'s student")
    given = weights.checkpoint_info(tmp_path / "x.safetensors", num_heads=4)
    assert given.spec.num_heads == 4
    assert f"a checkpoint of {title}; left out: " in said and "num_heads" not in said
    assert loaded.model.preprocess.mean == (0.485, 0.456, 0.406)
    weights.save(loaded, tmp_path / "back", "timm")
    back = safetensors.read(tmp_path / "back" / "model.safetensors")
    assert back.keys() == arrays.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(back[name].read(), x.read())


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("by", ["its positions", "positions of others"])
def test_heads_of_a_bare_small_moco(tmp_path, capsys, by, prefix):
    arrays = dict(toy_arrays(tmp_path / "toy", width=384, mlp_dim=1536, depth=12, num_heads=12))
    omega = 1e4 ** -(np.arange(96) / 96)
    slow, fast = (i.ravel()[:, None] * omega for i in np.indices((3, 3)))
    order = (slow, fast) if by == "its positions" else (fast, slow)
    waves = np.concatenate([f(x) for x in order for f in (np.sin, np.cos)], axis=1)
    arrays["pos_embed"] = from_array(np.pad(waves, ((1, 0), (0, 0)))[None].astype(np.float32))
    safetensors.write(tmp_path / "x.safetensors", under(prefix, arrays))
    info = weights.checkpoint_info(tmp_path / "x.safetensors")
    assert info.spec.num_heads == (12 if by == "its positions" else 6)
    given = weights.checkpoint_info(tmp_path / "x.safetensors", num_heads=4)
    assert given.spec.num_heads == 4
    assert ("MoCo v3's" in capsys.readouterr().err) == (by == "its positions")


@pytest.mark.parametrize("shape", [(16,), (1, 0, 16)])
def test_positions_of_an_odd_shape(tmp_path, shape):
    arrays = toy_arrays(tmp_path / "toy") | {"pos_embed": from_array(np.ones(shape, np.float32))}
    safetensors.write(tmp_path / "x.safetensors", arrays)
    with refused("x.safetensors"):
        weights.checkpoint_info(tmp_path / "x.safetensors")


# Fields of toys, what names have before them, other arrays, and the layout.
_TOY = TOY | {"num_classes": 0, "gelu": "exact"}
_DINO = _TOY | {"layer_scale": 1e-5, "registers": 2}
_V3 = {"norm_epsilon": 1e-5, "position_embedding": "rotary_2d", "qkv_bias": "query_value"}
_OF_V3 = {
    "mask_token": ROW,
    "rope_embed.periods": from_array(np.float32(100.0 ** (np.arange(2) / 2))),
    "blocks.0.attn.qkv.bias_mask": ROW,
}
TABLES = {
    "OpenCLIP": (
        _TOY | {"pre_norm": True, "patch_bias": False, "norm_epsilon": 1e-5},
        "visual.",
        {"visual.proj": ROW, "token_embedding.weight": ROW, "logit_scale": ROW},
        authors._OPEN_CLIP,
    ),
    "DINOv2": (
        _DINO | {"mlp": "swiglu", "width": 64},  # 2 heads are given, not 64 channels each
        "",
        {"mask_token": ROW},
        authors._dino(rotary=False, gated=True, qkv_bias="all"),
    ),
    "DINOv2's teacher": (
        _DINO,
        "backbone.",
        {"backbone.mask_token": ROW, "dino_head.mlp.0.weight": ROW},
        authors._dino(rotary=False, gated=False, qkv_bias="all"),
    ),
    "DINOv3": (
        _DINO | _V3,
        "",
        _OF_V3,
        authors._dino(rotary=True, gated=False, qkv_bias="query_value"),
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables(tmp_path, capsys, kind):
    """Parameters come in by a table, and go out as timm's and come in again, to the bit."""
    fields, prefix, others, layout = TABLES[kind]
    params = params_of(randomised("ViT-Ti/4", **fields).model)
    arrays = dict(others)
    keys = {f"blocks.{i}.attn.k_bias": from_array(np.zeros(16, np.float32)) for i in (0, 1)}
    unpacked = dataclasses.replace(layout, packs=())
    named = to_theirs(unpacked, params) | (keys if kind == "DINOv3" else {})
    arrays |= under(prefix, packed(layout.packs if kind != "OpenCLIP" else (), named))
    safetensors.write(tmp_path / "x.safetensors", arrays)
    size = 12 if kind == "DINOv3" else None
    loaded = weights.load_with_info(tmp_path / "x.safetensors", num_heads=2, image_size=size)
    for name, x in params_of(loaded.model).items():
        np.testing.assert_array_equal(x, params[name])
    assert ("token_embedding.weight" in capsys.readouterr().err) == (kind == "OpenCLIP")
    weights.save(loaded, tmp_path / "back", "timm")
    again = weights.load(tmp_path / "back")
    images = np.random.default_rng(0).normal(size=(1, 12, 12, 3)).astype(np.float32)
    np.testing.assert_array_equal(again(images), loaded.model(images))


def test_the_config_of_open_clip_beside_that_of_another(tmp_path):
    fields, prefix, others, layout = TABLES["OpenCLIP"]
    params = params_of(randomised("ViT-Ti/4", **fields).model)
    path = tmp_path / "open_clip_model.safetensors"
    safetensors.write(path, under(prefix, to_theirs(layout, params)) | others)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    vision = {"image_size": 12, "width": 16, "head_width": 4, "layers": 2, "patch_size": 4}
    about = {
        "model_cfg": {"quick_gelu": True, "vision_cfg": vision},
        "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(about))
    info = weights.checkpoint_info(tmp_path)
    assert (info.spec.gelu, info.spec.num_heads) == ("quick", 4)
    assert info.preprocess == Preprocess((12, 12), (12, 12), None, interpolation="bicubic")
    edit(tmp_path, {"model_cfg.vision_cfg.layers": 3}, "open_clip_config.json")
    with refused("layers"):
        weights.checkpoint_info(tmp_path)
    for width in (0.5, 0, "4"):
        edit(tmp_path, {"model_cfg.vision_cfg.head_width": width}, "open_clip_config.json")
        edit(tmp_path, {"model_cfg.vision_cfg.layers": 2}, "open_clip_config.json")
        with refused("head_width"):
            weights.checkpoint_info(tmp_path)


@pytest.mark.parametrize(("given", "heads"), [(None, 16), (20, 20)])
def test_heads_of_a_huge_open_clip_without_its_config(given, heads):
    fields = {"num_classes": 0, "image_size": 28, "pre_norm": True, "patch_bias": False}
    _, params = zeros_of("ViT-H/14", gelu="exact", **fields)
    tensors = under("visual.", to_theirs(authors._OPEN_CLIP, params))
    there = understand(Opened("x", "torch", tensors, None, None, caller_num_heads=given))
    assert there.spec.num_heads == heads
    assert ("num_heads" in there.assumed) == (given is None)


def test_an_eva_needs_timms_config(tmp_path):
    arrays = toy_arrays(tmp_path / "toy") | {"blocks.0.attn.q_bias": ROW}
    safetensors.write(tmp_path / "x.safetensors", arrays)
    with refused("EVA", "config.json"):
        weights.checkpoint_info(tmp_path / "x.safetensors", num_heads=2)


def test_a_clip_of_hugging_face_is_not_called_an_eva(tmp_path):
    clip = TOY | {"num_classes": 0, "pre_norm": True, "patch_bias": False}
    weights.save(randomised("ViT-Ti/4", **clip), tmp_path / "x", "huggingface")
    (tmp_path / "x" / "config.json").unlink()
    with refused("patch_embedding") as error:
        weights.checkpoint_info(tmp_path / "x")
    assert "EVA" not in str(error.value)


def test_rotary_positions_of_another_base(tmp_path):
    fields, _, others, layout = TABLES["DINOv3"]
    params = params_of(randomised("ViT-Ti/4", **fields).model)
    arrays = others | to_theirs(dataclasses.replace(layout, packs=()), params)
    arrays["rope_embed.periods"] = from_array(np.float32(10.0 ** (np.arange(2) / 2)))
    safetensors.write(tmp_path / "x.safetensors", arrays)
    with refused("another base"):
        weights.checkpoint_info(tmp_path / "x.safetensors", num_heads=2)
