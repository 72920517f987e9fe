"""Checkpoints of trainings by their authors: the model in them comes in, and goes out again."""

import numpy as np
import pytest

from tests.weights.conftest import TOY, randomised
from vit_jax import weights
from vit_jax.weights.files import from_array, safetensors

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
    assert f"a checkpoint of {title}; left out: " in said and "num_heads" not in said
    assert loaded.model.preprocess.mean == (0.485, 0.456, 0.406)
    weights.save(loaded, tmp_path / "back", "timm")
    back = safetensors.read(tmp_path / "back" / "model.safetensors")
    assert back.keys() == arrays.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(back[name].read(), x.read())


@pytest.mark.parametrize("by", ["its positions", "positions of others"])
def test_heads_of_a_bare_small_moco(tmp_path, capsys, by):
    arrays = dict(toy_arrays(tmp_path / "toy", width=384, mlp_dim=1536, depth=12, num_heads=12))
    omega = 1e4 ** -(np.arange(96) / 96)
    slow, fast = (i.ravel()[:, None] * omega for i in np.indices((3, 3)))
    order = (slow, fast) if by == "its positions" else (fast, slow)
    waves = np.concatenate([f(x) for x in order for f in (np.sin, np.cos)], axis=1)
    arrays["pos_embed"] = from_array(np.pad(waves, ((1, 0), (0, 0)))[None].astype(np.float32))
    safetensors.write(tmp_path / "x.safetensors", arrays)
    info = weights.checkpoint_info(tmp_path / "x.safetensors")
    assert info.spec.num_heads == (12 if by == "its positions" else 6)
    assert ("MoCo v3's" in capsys.readouterr().err) == (by == "its positions")
