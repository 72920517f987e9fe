"""The tables of other projects' parameters: their axes, and the order of parts in one array."""

import re

import numpy as np
import pytest

from vit_jax import models
from vit_jax.weights.formats import FORMATS, timm
from vit_jax.weights.tables import to_theirs


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_queries_keys_and_values_are_where_they_belong(pool):
    spec = models.spec("ViT-Ti/4", pool=pool)
    rules = [rule for f in FORMATS for rule in f.layout_for(spec).rules if len(rule.names) > 1]
    assert len(rules) == {"cls": 13, "map": 15}[pool]
    for rule in rules:
        letters = "".join(re.search(r"[/.]([qkv])\w*.\w+$", name)[1] for name in rule.names)
        assert letters == ("kv" if "key_value" in rule.ours else "qkv"), rule


def test_kernels_are_those_of_torch():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    patches, fc1, qkv, out = (
        draw(2, 2, 3, 8), draw(1, 8, 5), draw(1, 8, 3, 2, 4), draw(1, 2, 4, 8)
    )  # fmt: skip
    ours = {
        "patches/kernel": patches,
        "blocks/block/mlp/fc1/kernel": fc1,
        "blocks/block/attention/qkv/kernel": qkv,
        "blocks/block/attention/out/kernel": out,
    }
    expected = {
        "patch_embed.proj.weight": patches.transpose(3, 2, 0, 1),
        "blocks.0.mlp.fc1.weight": fc1[0].T,
        "blocks.0.attn.qkv.weight": qkv[0].reshape(8, 24).T,
        "blocks.0.attn.proj.weight": out[0].reshape(8, 8).T,
    }
    theirs = to_theirs(timm.VIT, ours)
    assert theirs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(theirs[name].read(), array, err_msg=name)
