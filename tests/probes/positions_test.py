import math
import operator
from pathlib import Path

import numpy as np
import pytest

from vit_jax import weights
from vit_jax.core.token_layout import TokenLayout
from vit_jax.nn.posemb import sincos
from vit_jax.probes import positions

ROUNDING = 1e-5
WEIGHTS = Path(__file__).parents[3] / "shared/data/vit_ti16_augreg"


def drawn(rows, columns, width, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns, width)).astype(np.float32)


def test_similarity_is_the_cosine_of_each_pair():
    table = drawn(3, 4, 8)
    found = positions.similarity(table)
    assert found.shape == (3, 4, 3, 4)
    for a in np.ndindex(3, 4):
        for b in np.ndindex(3, 4):
            x, y = table[a].tolist(), table[b].tolist()
            expected = sum(map(operator.mul, x, y)) / math.hypot(*x) / math.hypot(*y)
            assert found[a][b] == pytest.approx(expected, abs=ROUNDING)


def test_position_without_embedding_is_similar_to_none():
    table = drawn(2, 2, 4)
    table[0, 1] = 0
    found = positions.similarity(table)
    assert np.isfinite(found).all()
    assert not found[0, 1].any()


def test_grid_share_is_that_of_a_regression_on_rows_and_columns():
    table = drawn(3, 5, 8)
    row, column = np.indices((3, 5)).reshape(2, -1)
    design = np.concatenate([np.eye(3)[row], np.eye(5)[column]], axis=1)
    flat = table.reshape(15, 8).astype(np.float64)
    left = flat - design @ np.linalg.lstsq(design, flat)[0]
    expected = 1 - np.sum(left**2) / np.sum((flat - flat.mean(axis=0)) ** 2)
    assert positions.grid_share(table) == pytest.approx(expected, abs=ROUNDING)


def test_grid_share_of_known_tables():
    layout = TokenLayout((6, 7), class_token=False)
    made_of_both = sincos("sincos_2d", layout, 64).reshape(6, 7, 64)
    assert positions.grid_share(made_of_both) == pytest.approx(1)
    rows, columns = drawn(6, 1, 64), drawn(1, 7, 64, seed=1)
    assert positions.grid_share(rows + columns) == pytest.approx(1)
    product = positions.grid_share((rows - rows.mean(0)) * (columns - columns.mean(1)))
    assert product == pytest.approx(0, abs=ROUNDING)
    random = np.mean([positions.grid_share(drawn(6, 7, 512, seed=k)) for k in range(5)])
    assert random == pytest.approx(positions.chance((6, 7)), abs=0.01)
    assert math.isnan(positions.grid_share(np.ones((2, 2, 4))))
    assert positions.chance((1, 5)) == positions.chance((1, 1)) == 1


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"needs {WEIGHTS}")
def test_trained_model_knows_rows_and_columns():
    """ViT-Ti/16 of AugReg: 0.998; one that was not trained is at chance (the test above)."""
    table = np.asarray(weights.load(WEIGHTS).positions.embedding[...])[1:].reshape(14, 14, -1)
    assert positions.grid_share(table) > 0.95
    assert positions.chance((14, 14)) == pytest.approx(26 / 195)
