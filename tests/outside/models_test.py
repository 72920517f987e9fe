"""Google's models on random parameters: their .npz loads here and gives the same logits."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from tests.outside.programs.drawing import drawn, drawn_images
from vit_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compilation")
LOGITS = 1e-4  # relative to the largest: float32 through a few layers, sums in another order

TRANSFORMER = {
    "mlp_dim": 24, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.1,
    "attention_dropout_rate": 0.0,
}  # fmt: skip
TINY = {
    "num_classes": 3, "hidden_size": 16, "patches": {"size": [4, 4]}, "transformer": TRANSFORMER,
    "classifier": "token", "representation_size": None,
}  # fmt: skip
# Fields of VisionTransformer and the images' side in pixels.
VISION_TRANSFORMERS = {
    "token": (TINY, 12),
    "token_with_representation": (TINY | {"representation_size": 16}, 12),
    "gap": (TINY | {"classifier": "gap"}, 12),
    "no_head": (TINY | {"num_classes": None}, 12),
    "stem": (TINY | {"resnet": {"num_layers": [], "width_factor": 0.5}}, 32),
    "hybrid": (
        TINY | {"resnet": {"num_layers": [2, 1], "width_factor": 0.5}, "patches": {"size": [1, 1]}},
        24,
    ),
}

TINY_BIG_VISION = {
    "num_classes": 3, "width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2, "patch_size": [4, 4],
}  # fmt: skip
TINY_TOWER = {name: x for name, x in TINY_BIG_VISION.items() if name != "num_classes"}
TINY_TEXT = {"width": 8, "depth": 1, "mlp_dim": 8, "num_heads": 2, "vocab_size": 9}
BIG_VISIONS = {
    "gap": TINY_BIG_VISION,
    "gap_with_representation": TINY_BIG_VISION | {"rep_size": True},
    "tok": TINY_BIG_VISION | {"pool_type": "tok"},
    "map": TINY_BIG_VISION | {"pool_type": "map"},
    "stacked": TINY_BIG_VISION | {"pool_type": "map", "scan": True},
    "sincos2d": TINY_BIG_VISION | {"posemb": "sincos2d", "rep_size": True},
    "flexi": TINY_BIG_VISION
    | {"model": "flexi", "posemb_size": [3, 3], "seqhw": 3, "pool_type": "tok"},
    "siglip": {
        "model": "lit", "image": TINY_TOWER | {"pool_type": "map", "scan": True}, "text": TINY_TEXT,
        "out_dim": [None, 16], "bias_init": -10.0,
    },
    "lit": {
        "model": "lit", "image": TINY_TOWER | {"pool_type": "tok"}, "text": TINY_TEXT,
        "out_dim": [5, 5],
    },
    "clippo": {
        "model": "clippo", "image_model": "vit", "image": TINY_TOWER | {"pool_type": "map"},
        "out_dim": 5,
    },
    "sincos2d_tok": TINY_BIG_VISION | {"posemb": "sincos2d", "pool_type": "tok", "scan": True},
}  # fmt: skip


@pytest.mark.parametrize("case", VISION_TRANSFORMERS)
def test_vision_transformers_npz(case, theirs, tmp_path):
    expected = theirs(
        "vision_transformer",
        "vision_transformer_models",
        lambda: {"cases": json.dumps(VISION_TRANSFORMERS)},
    )
    arrays = drawn(json.loads(str(expected[f"{case}/shapes"])))
    places = json.loads(str(expected[f"{case}/released"]))
    np.savez(tmp_path / "today.npz", **arrays)
    np.savez(
        tmp_path / "released.npz", **{to: arrays[n].reshape(s) for n, (to, s) in places.items()}
    )
    model, released = (weights.load(tmp_path / name) for name in ("today.npz", "released.npz"))
    check_logits(model, drawn_images(VISION_TRANSFORMERS[case][1]), expected[f"{case}/logits"])
    jax.tree.map(np.testing.assert_array_equal, nnx.state(released), nnx.state(model))


@pytest.mark.parametrize("case", BIG_VISIONS)
def test_big_visions_npz(case, theirs, tmp_path, capsys):
    expected = theirs(
        "big_vision",
        "big_vision_models",
        lambda: {"cases": json.dumps({name: (f, 12) for name, f in BIG_VISIONS.items()})},
    )
    arrays = drawn(json.loads(str(expected[f"{case}/shapes"])))
    np.savez(tmp_path / "x.npz", **{f"params/{name}": x for name, x in arrays.items()})
    model = weights.load(tmp_path / "x.npz", image_size=12)
    assert ("left out" in capsys.readouterr().err) == ("t" in arrays)
    check_logits(model, drawn_images(12), expected[f"{case}/logits"])


def check_logits(model, images, expected):
    logits = jax.jit(model)(images)
    assert logits.shape == expected.shape
    assert np.std(expected, axis=0).max() > 0.01  # logits do differ between images
    np.testing.assert_allclose(logits, expected, rtol=0, atol=LOGITS * np.abs(expected).max())
