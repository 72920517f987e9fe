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
# Checkout, sizes, and the heads where the file does not tell them.
CASES = {
    "dino": ("dino", SIZES, 2),
    "mae": ("mae", SIZES | {"mlp_ratio": 2}, 2),
    "moco": ("moco-v3", SIZES | {"embed_dim": 48, "num_heads": 12}, None),
}


@pytest.fixture
def saved(theirs, tmp_path):
    """`saved("mae")`: what is recorded of a case, and a file of the arrays that it saves."""

    def save(case):
        checkout, sizes, _ = CASES[case]
        about = json.dumps({"case": case, "sizes": sizes})
        expected = theirs(checkout, "authors_models", lambda: {"about": about}, case)
        fixed = {n.removeprefix("fixed/"): x for n, x in expected.items() if "fixed/" in n}
        arrays = drawn(json.loads(str(expected["shapes"]))) | fixed
        named = {name: from_array(np.asarray(x)) for name, x in arrays.items()}
        safetensors.write(tmp_path / "x.safetensors", named)
        return expected, tmp_path / "x.safetensors"

    return save


@pytest.mark.parametrize("case", CASES)
def test_features(case, saved):
    expected, path = saved(case)
    model = weights.load(path, num_heads=CASES[case][2])
    features = jax.jit(model)(drawn_images(12))
    largest = np.abs(expected["features"]).max()
    np.testing.assert_allclose(features, expected["features"], rtol=0, atol=FEATURES * largest)
    assert np.std(expected["features"], axis=0).max() > 0.01  # images differ
