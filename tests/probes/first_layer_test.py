import math
import operator
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models, weights
from vit_jax.core import pytrees
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.layers.posemb import sincos
from vit_jax.models.layers.resnet import standardized
from vit_jax.probes import first_layer

ROUNDING = 1e-5


def params(name):
    """Random parameters of a model, by name."""
    make = lambda: models.create(name, num_classes=3, image_size=32, rngs=nnx.Rngs(0))
    shapes = pytrees.flatten(nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param)))
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=x.shape).astype(np.float32) if "kernel" in name and x.ndim == 4 else x
        for name, x in shapes.items()
    }


def by_hand(kernel):
    """Variances and components from the filters' covariance matrix."""
    rows = kernel.reshape(-1, kernel.shape[-1]).astype(np.float64)
    variances, vectors = np.linalg.eigh(np.cov(rows))
    return variances[::-1], vectors[:, ::-1].T.reshape(-1, *kernel.shape[:3])


def test_components_are_those_of_the_covariance():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 64)).astype(np.float32)
    found = first_layer.components(kernel)
    variances, pictures = by_hand(kernel)
    assert found.pictures.shape == (28, 4, 4, 3)
    signs = np.sign(np.sum(found.pictures * pictures[:28], axis=(1, 2, 3), keepdims=True))
    np.testing.assert_allclose(found.pictures, signs * pictures[:28], atol=ROUNDING)
    np.testing.assert_allclose(found.explained, variances[:28] / variances.sum(), rtol=ROUNDING)


def test_first_layer_of_each_family():
    found = first_layer.first_layer(params("ViT-Ti/16"))
    assert (found.kernel.shape, found.what) == ((16, 16, 3, 192), "patch projection")
    for name in ("R50x1", "R50+ViT-B/16"):
        of_all = params(name)
        found = first_layer.first_layer(of_all)
        assert found.kernel.shape == (7, 7, 3, 64)
        assert found.what == "first convolution of the ResNet"
        (raw,) = (x for name, x in of_all.items() if name.endswith("resnet/root/conv/kernel"))
        used = standardized(raw, 1e-10, "variance")
        np.testing.assert_allclose(found.kernel, used, atol=ROUNDING)
    with refused("patches/kernel"):
        first_layer.first_layer({"head/kernel": np.zeros((3, 3))})


WEIGHTS = Path(__file__).parents[3] / "shared/data/vit_ti16_augreg"


def drawn(rows, columns, width, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns, width)).astype(np.float32)


def test_similarity_is_the_cosine_of_each_pair():
    table = drawn(3, 4, 8)
    found = first_layer.similarity(table)
    assert found.shape == (3, 4, 3, 4)
    for a in np.ndindex(3, 4):
        for b in np.ndindex(3, 4):
            x, y = table[a].tolist(), table[b].tolist()
            expected = sum(map(operator.mul, x, y)) / math.hypot(*x) / math.hypot(*y)
            assert found[a][b] == pytest.approx(expected, abs=ROUNDING)


def test_grid_share_is_that_of_a_regression_on_rows_and_columns():
    table = drawn(3, 5, 8)
    row, column = np.indices((3, 5)).reshape(2, -1)
    design = np.concatenate([np.eye(3)[row], np.eye(5)[column]], axis=1)
    flat = table.reshape(15, 8).astype(np.float64)
    left = flat - design @ np.linalg.lstsq(design, flat)[0]
    expected = 1 - np.sum(left**2) / np.sum((flat - flat.mean(axis=0)) ** 2)
    assert first_layer.grid_share(table) == pytest.approx(expected, abs=ROUNDING)


def test_grid_share_of_known_tables():
    layout = TokenLayout((6, 7), class_token=False)
    made_of_both = sincos("sincos_2d", layout, 64).reshape(6, 7, 64)
    assert first_layer.grid_share(made_of_both) == pytest.approx(1)
    rows, columns = drawn(6, 1, 64), drawn(1, 7, 64, seed=1)
    assert first_layer.grid_share(rows + columns) == pytest.approx(1)
    product = first_layer.grid_share((rows - rows.mean(0)) * (columns - columns.mean(1)))
    assert product == pytest.approx(0, abs=ROUNDING)
    random = np.mean([first_layer.grid_share(drawn(6, 7, 512, seed=k)) for k in range(5)])
    assert random == pytest.approx(first_layer.chance((6, 7)), abs=0.01)
    assert math.isnan(first_layer.grid_share(np.ones((2, 2, 4))))
    assert first_layer.chance((1, 5)) == first_layer.chance((1, 1)) == 1


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"needs {WEIGHTS}")
def test_trained_model_knows_rows_and_columns():
    """ViT-Ti/16 of AugReg: 0.998; one that was not trained is at chance (the test above)."""
    table = np.asarray(weights.load(WEIGHTS).positions.embedding[...])[1:].reshape(14, 14, -1)
    assert first_layer.grid_share(table) > 0.95
    assert first_layer.chance((14, 14)) == pytest.approx(26 / 195)
