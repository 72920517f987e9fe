"""Destination formats of each model: the table of docs/weights.md, row by row."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.saving import DESTINATIONS

pytestmark = pytest.mark.usefixtures("quick_compilation")
DOCS = Path(__file__).parents[2] / "docs" / "weights.md"
DINOV2 = {"layer_scale": 1.0, "mlp_dim": 32}
# By first cell: models that convert, to which formats, and a word of the refusal elsewhere.
ROWS = {
    "`pool=cls`": ({"pool": "cls"}, "huggingface timm google_npz"),
    "`pool=avg`": ({"pool": "avg"}, "huggingface timm google_npz"),
    "`pool=map`": ({"pool": "map"}, "timm google_npz"),
    "`pool=cls_avg`": ({"pool": "cls_avg", **DINOV2}, "huggingface"),
    "`layer_scale`": ({**DINOV2, "num_classes": 0}, "huggingface timm"),
    "`registers` with `pool=avg` or `cls`": ({"registers": 2}, "timm"),
    "`qkv_bias=none`": ({"qkv_bias": "none"}, "huggingface timm"),
    "`pre_logits`": ({"pre_logits": True, "num_classes": 0}, "huggingface google_npz"),
    "`gelu=exact` (the default is `tanh`)": ({"gelu": "exact"}, "huggingface timm"),
    "`norm_epsilon` other than 1e-6, the default": ({"norm_epsilon": 1e-5}, "huggingface"),
}
ELSEWHERE = [
    ({"pool": "cls_avg"}, ""),  # without LayerScale
    ({"layer_scale": 0.1}, "timm"),  # with a head and the class token
    ({"pre_logits": True}, "google_npz"),  # with a head
    ({"pre_logits": True, "pool": "avg", "num_classes": 0}, "google_npz"),
    ({"pool": "map", "norm_epsilon": 1e-5}, ""),
    ({"pre_logits": True, "gelu": "exact"}, ""),
]


def converted(loaded, folder):
    """The formats that hold a model; every refusal names just these, and a checkpoint."""
    formats, refusals = [], []
    for to in DESTINATIONS[:-1]:
        try:
            weights.save(loaded, folder / f"{to}.npz", to)
        except UserError as error:
            refusals.append(str(error))
        else:
            weights.checkpoint_info(folder / f"{to}.npz")
            formats.append(to)
    for refusal in refusals:
        assert f"convert --to={' or '.join([*formats, 'checkpoint'])}, " in refusal
    return formats


@pytest.mark.parametrize("row", ROWS)
def test_models_convert_to_the_formats_of_the_table(tmp_path, toy, row):
    fields, expected = ROWS[row]
    assert converted(toy(**fields), tmp_path) == expected.split()


@pytest.mark.parametrize(("fields", "expected"), ELSEWHERE)
def test_models_convert_to_no_other_format(tmp_path, toy, fields, expected):
    assert converted(toy(**fields), tmp_path) == expected.split()


@pytest.mark.slow
@pytest.mark.parametrize("to", DESTINATIONS)
@pytest.mark.parametrize("positions", ["learned_1d", "sincos_1d"])
def test_a_class_token_without_a_position_computes_the_same_there(
    tmp_path, toy, images, to, positions
):
    fields = {"gelu": "exact"} if to == "timm" else {}
    loaded = toy(class_position=False, position_embedding=positions, **fields)
    weights.save(loaded, tmp_path / "out.npz", to)
    there = weights.load(tmp_path / "out.npz")
    np.testing.assert_allclose(there(images), loaded.model(images), atol=1e-5)


@pytest.mark.parametrize(
    ("pool", "positions"),
    [("avg", "sincos_1d"), ("avg", "sincos_2d"), ("cls", "learned_1d"), ("cls", "sincos_2d")],
)
def test_registers_compute_the_same_there(tmp_path, toy, images, pool, positions):
    loaded = toy(pool=pool, registers=2, gelu="exact", position_embedding=positions)
    weights.save(loaded, tmp_path / "out", "timm")
    there = weights.load(tmp_path / "out")
    np.testing.assert_allclose(there(images), loaded.model(images), atol=1e-5)


def test_the_table_has_these_rows():
    cells = [
        line.split("|")[1].strip() for line in DOCS.read_text().splitlines() if "|" in line[:1]
    ]
    start = cells.index("plain ViT with") + 2
    assert cells[start : start + len(ROWS)] == list(ROWS)
