"""DeiT III's initial parameters, against its own code."""

import json

import numpy as np
import pytest
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees

SIZES = {"embed_dim": 64, "depth": 3, "num_heads": 4, "mlp_ratio": 4, "num_classes": 50}
FIELDS = {"img_size": 96, "patch_size": 8, "qkv_bias": True, **SIZES}
PERCENTS = np.arange(5, 96, 5.0)
NAMES = {
    "patches/kernel": "patch_embed.proj.weight",
    "patches/bias": "patch_embed.proj.bias",
    "cls": "cls_token",
    "positions/embedding": "pos_embed",
    "blocks/block/norm1/scale": "blocks.norm1.weight",
    "blocks/block/norm1/bias": "blocks.norm1.bias",
    "blocks/block/attention/qkv/kernel": "blocks.attn.qkv.weight",
    "blocks/block/attention/qkv/bias": "blocks.attn.qkv.bias",
    "blocks/block/attention/out/kernel": "blocks.attn.proj.weight",
    "blocks/block/attention/out/bias": "blocks.attn.proj.bias",
    "blocks/block/scale1/scale": "blocks.gamma_1",
    "blocks/block/norm2/scale": "blocks.norm2.weight",
    "blocks/block/norm2/bias": "blocks.norm2.bias",
    "blocks/block/mlp/fc1/kernel": "blocks.mlp.fc1.weight",
    "blocks/block/mlp/fc1/bias": "blocks.mlp.fc1.bias",
    "blocks/block/mlp/fc2/kernel": "blocks.mlp.fc2.weight",
    "blocks/block/mlp/fc2/bias": "blocks.mlp.fc2.bias",
    "blocks/block/scale2/scale": "blocks.gamma_2",
    "norm/scale": "norm.weight",
    "norm/bias": "norm.bias",
    "head/kernel": "head.weight",
    "head/bias": "head.bias",
}


@pytest.fixture
def started():
    model = models.create(
        "ViT-Ti/8", num_classes=50, image_size=96, rngs=nnx.Rngs(1), initialization="deit",
        class_position=False, layer_scale=1e-4, depth=3, width=64, mlp_dim=256, num_heads=4,
    )  # fmt: skip
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(x, np.float64) for name, x in params.items()}


def test_parameters_start_as_those_of_deit(theirs, started):
    inputs = {"fields": json.dumps(FIELDS), "percents": PERCENTS}
    expected = theirs("deit", "deit_starts", lambda: inputs)
    assert set(NAMES.values()) == set(expected)
    assert set(NAMES) == set(started)
    for ours, name in NAMES.items():
        values, percentiles = started[ours], expected[name]
        if np.ptp(percentiles) < 1e-9:  # a constant, up to float32
            np.testing.assert_allclose(values, percentiles[0], rtol=1e-6, err_msg=ours)
            continue
        # Six standard deviations of the difference between the percentiles of two samples: one's is
        # at most sqrt(p (1 - p) / n) / density, 2.2 / sqrt(n) in units of the distribution's.
        tolerance = 6 * 2**0.5 * 2.2 * values.std() / values.size**0.5
        actual = np.percentile(values, PERCENTS)
        np.testing.assert_allclose(actual, percentiles, atol=tolerance, err_msg=ours)
