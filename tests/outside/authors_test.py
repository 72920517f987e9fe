"""Models that their authors' own code saved: what is read here gives the same features."""

import json

import jax
import numpy as np
import pytest

from tests.outside.programs.drawing import drawn, drawn_images
from vit_jax import weights
from vit_jax.weights.files import from_array, safetensors

pytestmark = pytest.mark.usefixtures("quick_compilation")
FEATURES = 1e-4  # relative to the largest: float32 through a few layers, sums in another order

SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
DINOV2 = SIZES | {"block_chunks": 0}
DINOV3 = SIZES | {"mask_k_bias": True, "n_storage_tokens": 2}
CLIP = {"image_size": 12, "patch_size": 4, "width": 16, "layers": 2, "head_width": 8}
CLIPA = CLIP | {
    "no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True, "mlp_ratio": 2,
    "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}, "ls_init_value": 0.1,
}  # fmt: skip
# Checkout, sizes, and the heads where the file does not tell them.
CASES = {
    "dino": ("dino", SIZES, 2),
    "mae": ("mae", SIZES | {"mlp_ratio": 2}, 2),
    "moco": ("moco-v3", SIZES | {"embed_dim": 48, "num_heads": 12}, None),
    "ijepa": ("ijepa", SIZES, 2),
    "dinov2": ("dinov2", DINOV2, 2),
    "dinov2-registers": ("dinov2", DINOV2 | {"num_register_tokens": 3}, 2),
    "dinov2-swiglu": ("dinov2", DINOV2 | {"ffn_layer": "swiglufused", "block_chunks": 2}, 2),
    "dinov3": ("dinov3", DINOV3, 2),
    "dinov3-swiglu": ("dinov3", DINOV3 | {"ffn_layer": "swiglu64", "qkv_bias": False}, 2),
    "open_clip": ("open_clip", CLIP, 2),
    "open_clip-quick": ("open_clip", CLIP, None),
    "open_clip-pooled": ("open_clip", CLIPA, None),
}


@pytest.fixture
def saved(theirs, tmp_path):
    """`saved("mae")`: what is recorded of a case, and a file of the arrays that it saves."""

    def save(case):
        checkout, sizes, _ = CASES[case]
        quick = case == "open_clip-quick"
        about = json.dumps({"case": case, "sizes": sizes, "quick": quick})
        expected = theirs(checkout, "authors_models", lambda: {"about": about}, case)
        fixed = {n.removeprefix("fixed/"): x for n, x in expected.items() if "fixed/" in n}
        arrays = drawn(json.loads(str(expected["shapes"]))) | fixed
        named = {name: from_array(np.asarray(x)) for name, x in arrays.items()}
        path = tmp_path / "open_clip_model.safetensors"
        safetensors.write(path, named)
        if case in ("open_clip-quick", "open_clip-pooled"):
            config = {"model_cfg": {"quick_gelu": quick, "vision_cfg": sizes}}
            (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
        return expected, path

    return save


@pytest.mark.parametrize("case", CASES)
def test_features(case, saved):
    expected, path = saved(case)
    size = 12 if case.startswith("dinov3") else None
    model = weights.load(path, num_heads=CASES[case][2], image_size=size)
    features = jax.jit(model)(drawn_images(12))
    largest = np.abs(expected["features"]).max()
    np.testing.assert_allclose(features, expected["features"], rtol=0, atol=FEATURES * largest)
    assert np.std(expected["features"], axis=0).max() > 0.01  # images differ
