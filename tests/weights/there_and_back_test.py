"""A format gives back what it was given: the same bits of every model that it holds.

What it does not hold is refused, with the formats that do, and nothing is written. The first rows
are those of docs/weights.md.
"""

import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.weights.conftest import BIT as TINY_BIT
from tests.weights.conftest import DINO, PORTED, TOY, params_of, randomised
from tests.weights.conftest import DINOV3 as V3
from vit_jax import weights
from vit_jax.core.errors import UserError
from vit_jax.weights.files import detect_format, from_array
from vit_jax.weights.formats import understand
from vit_jax.weights.saving import DESTINATIONS
from vit_jax.weights.tables import is_standardized

pytestmark = pytest.mark.usefixtures("quick_compilation")
DOCS = Path(__file__).parents[2] / "docs" / "weights.md"
ROUNDING = 1e-5  # float32, of table and tokens that are added in another order
ALL = "huggingface timm google_npz"
DINOV2 = DINO | {"mlp_dim": 32}
DINOV3 = DINO | V3 | {"image_size": (12, 8)}
BEIT = {
    "layer_scale": 0.1, "gelu": "exact", "position_embedding": "relative_2d",
    "qkv_bias": "query_value",
}  # fmt: skip
BIT = TINY_BIT | {"image_size": 224}
HYBRID = {**BIT, **TOY, "patch_size": 8, "image_size": 24}
OF_TIMM = {"units": (), "root_width": 64, "patch_size": 32, "image_size": 64}
# By first cell, of a ViT: fields, and the formats that hold it.
ROWS = {
    "`pool=cls`": ({"pool": "cls"}, ALL),
    "`pool=avg`": ({"pool": "avg"}, ALL),
    "`pool=map`": ({"pool": "map"}, "timm google_npz"),
    "`pool=cls_avg`": ({**DINOV2, "pool": "cls_avg", "num_classes": 3}, "huggingface"),
    "`layer_scale`": (DINOV2, "huggingface timm"),
    "`registers` with `pool=avg` or `cls`": ({"registers": 2, "pool": "avg"}, "timm"),
    "`qkv_bias=none`": ({"qkv_bias": "none"}, "huggingface timm"),
    "`pre_logits`": ({"pre_logits": True, "num_classes": 0}, "huggingface google_npz"),
    "`gelu=exact` (the default is `tanh`)": ({"gelu": "exact"}, "huggingface timm"),
    "`norm_epsilon` other than 1e-6, the default": ({"norm_epsilon": 1e-5}, "huggingface timm"),
    "`gelu=quick`": ({"gelu": "quick"}, "huggingface timm"),
    "`pre_norm` and no `patch_bias`": ({"pre_norm": True, "patch_bias": False}, "timm"),
    "`projection`": (
        {"pre_norm": True, "patch_bias": False, "projection": 8, "num_classes": 0},
        "huggingface",
    ),
    "`unit_features`": ({"unit_features": True}, ""),
    "`final_norm=features` or `none`": ({"pool": "avg", "final_norm": "features"}, "timm"),
    "`class_token` with `pool=avg` or `map`": ({"pool": "map", "class_token": True}, "timm"),
    "`mlp=swiglu`": ({"mlp": "swiglu", "gelu": "exact"}, "timm"),
    "`norm_branch`": ({"norm_branch": True}, "timm"),
    "`rotary_2d` (DINOv3)": (DINOV3, "huggingface timm"),
    "`rotary_axial`, `rotary_mixed`, `absolute_positions`": (
        {"position_embedding": "rotary_mixed", "absolute_positions": True, "gelu": "exact"},
        "timm",
    ),
    "`attention_norm`, `mlp_norm`": (
        {
            "position_embedding": "rotary_axial",
            "attention_norm": True,
            "mlp_norm": True,
            "gelu": "exact",
        },
        "timm",
    ),
    "`qkv_bias=query_value` with learned positions": (
        {"qkv_bias": "query_value", "gelu": "exact"},
        "timm",
    ),
}
FURTHER = [
    ({"num_classes": 0}, ALL),
    ({"num_classes": 0, "pool": "avg"}, ALL),
    ({"pool": "avg", "qkv_bias": "none", "gelu": "exact"}, "huggingface timm"),
    ({"distillation_token": True}, "huggingface timm"),
    ({"distillation_token": True, "norm_epsilon": 1e-5}, "huggingface"),
    ({"distillation_token": True, "attention_norm": True, "mlp_norm": True, "gelu": "exact",
      "norm_epsilon": 1e-5}, ""),
    ({"registers": 1}, "huggingface timm"),
    ({"registers": 1, "num_classes": 0}, "timm"),
    ({"registers": 1, "pre_logits": True, "num_classes": 0}, "huggingface"),
    ({"image_size": (12, 8)}, "huggingface timm"),
    ({"pool": "cls_avg"}, ""),  # without LayerScale
    ({"layer_scale": 0.1}, "timm"),  # with a head and the class token
    ({"pre_logits": True}, "google_npz"),  # with a head
    ({"pre_logits": True, "pool": "avg", "num_classes": 0}, "google_npz"),
    ({"pool": "map", "norm_epsilon": 1e-5}, "timm"),
    ({"norm_epsilon": 1e-4}, "huggingface"),
    ({"pre_norm": True, "patch_bias": False, "num_classes": 0}, "huggingface timm"),
    ({"pool": "map", "num_classes": 0}, ALL),
    ({"pool": "map", "num_classes": 0, "projection": 8}, ""),
    ({"pre_norm": True}, ""),  # with a bias of the patches
    ({"norm": "rms"}, "timm"),
    ({"norm": "rms", "parallel": True, "qk_norm": True, "qkv_bias": "none"}, "timm"),
    ({"norm": "rms", "parallel": True, "qk_norm": True}, ""),
    ({"mlp": "swiglu", "pool": "map"}, ""),
    ({"norm": "rms", "mlp": "swiglu", "gelu": "exact", "norm_epsilon": 1e-5, "patch_norm": True,
      "dense_bias": False, "qkv_bias": "none", "pool": "avg"}, "timm"),
    ({"final_norm": "none", "layer_scale": 0.1}, "timm"),
    ({**BEIT, "pool": "avg", "class_token": True, "final_norm": "features"}, "huggingface timm"),
    ({**BEIT, "num_classes": 0}, "huggingface timm"),
    ({**BEIT, "pool": "avg"}, ""),
    ({**BEIT, "position_at": "shared"}, ""),
    ({"position_embedding": "relative_mlp", "position_hidden": 6, "gelu": "exact"}, "timm"),
    ({"position_embedding": "relative_mlp", "position_at": "shared", "gelu": "exact"}, "timm"),
    ({"position_at": "shared"}, ""),
    ({"logit_cap": 5.0}, ""),
    ({"value_residual": 0.5}, ""),
    ({"pre_logits": True, "gelu": "exact"}, ""),
    ({"pool": "map", "registers": 3}, "timm"),
    ({"pool": "map", "registers": 3, "pool_prefix": True}, "timm"),
    ({"position_embedding": "learned_2d", "qk_norm": True}, ""),
    ({"position_embedding": "none"}, ""),
    ({"position_at": "layers"}, ""),
    ({"qkv_bias": "query_value"}, ""),
    ({"probabilities": "sigmoid"}, "huggingface"),
    # Dinov2
    ({**DINOV2, "mlp": "swiglu"}, "huggingface timm"),
    ({**DINOV2, "mlp": "swiglu", "pool": "cls_avg", "num_classes": 3}, "huggingface"),
    ({**DINOV2, "qkv_bias": "none"}, "huggingface timm"),
    ({**DINOV2, "mlp": "geglu"}, ""),
    ({**DINOV2, "mlp": "swiglu", "mlp_dim": 25}, "timm"),
    # DINOv3
    ({**DINOV3, "mlp": "swiglu"}, "huggingface timm"),
    ({**DINOV3, "mlp": "geglu", "qkv_bias": "all"}, "huggingface"),
    ({**DINOV3, "mlp": "swiglu", "qkv_bias": "none", "dense_bias": False, "registers": 0},
     "huggingface"),
    ({**DINOV3, "num_classes": 3}, "timm"),
    ({**DINOV3, "pool": "avg"}, "timm"),
    ({**DINOV3, "layer_scale": 0.0}, "timm"),
    ({**DINOV3, "qk_norm": True}, ""),
    # timm's EVAs
    ({"position_embedding": "rotary_axial", "rotary_grid": 16, "rotary_base": 1e4, "mlp": "swiglu",
      "gelu": "exact", "pool": "avg", "class_token": True, "final_norm": "features",
      "absolute_positions": True, "qkv_bias": "query_value"}, "timm"),
    ({"position_embedding": "rotary_axial", "rotary_offset": 1.0, "rotary_columns_first": True,
      "gelu": "exact", "pool": "map", "pool_prefix": True, "pool_heads": 1, "pool_mlp_dim": 32,
      "pre_norm": True, "patch_bias": False, "norm_epsilon": 1e-5}, "timm"),
    ({"position_embedding": "rotary_axial"}, ""),
]  # fmt: skip
OTHERS = [
    ("R50x1", BIT, "huggingface google_npz"),
    ("R50x1", {**BIT, "units": (2,)}, "huggingface google_npz"),
    ("R50x1", {**BIT, **PORTED, "num_classes": 0}, "huggingface google_npz"),
    ("R50x1", {**BIT, **PORTED, "units": (1, 1, 1, 1)}, "huggingface google_npz"),
    ("R50x1", {**BIT, "units": (1, 1, 1, 1, 1)}, ""),
    ("R50x1", {**BIT, "group_norm_epsilon": 1e-3}, ""),
    ("R50x1", {**BIT, "weight_epsilon_of": "deviation"}, ""),
    ("R50+ViT-B/16", HYBRID, "google_npz"),
    ("R50+ViT-B/16", {**HYBRID, "pre_logits": True}, "google_npz"),
    ("R50+ViT-B/16", {**HYBRID, "num_classes": 0}, "google_npz"),
    ("R50+ViT-B/16", {**HYBRID, "units": (), "patch_size": 4}, "google_npz"),
    ("R50+ViT-B/16", {**HYBRID, "pool": "map"}, ""),
    ("R50+ViT-B/16", {**HYBRID, **PORTED}, ""),
    ("R50+ViT-B/16", {**HYBRID, **PORTED, **OF_TIMM}, "timm"),
    ("EfficientNet-0.2x0.1", {"num_classes": 3, "image_size": 32}, ""),
    ("Axial-ViT-Ti/4", TOY, ""),
    ("AxialResNet-1-2",
     {"root_width": 32, "num_heads": 4, "num_classes": 3, "image_size": 24}, ""),
]  # fmt: skip
CASES = [("ViT-Ti/4", TOY | fields, to) for fields, to in (*ROWS.values(), *FURTHER)] + OTHERS


@pytest.mark.parametrize(("name", "fields", "formats"), CASES)
def test_a_format_gives_back_what_it_holds(tmp_path, name, fields, formats):
    ours = randomised(name, **fields)
    held = [*formats.split(), "checkpoint"]
    for to in DESTINATIONS:
        path = tmp_path / f"{to}.npz"
        if to not in held:
            with pytest.raises(UserError) as error:
                weights.save(ours, path, to)
            assert f"--to={' or '.join(held)} " in str(error.value)
            continue
        weights.save(ours, path, to)
        again = weights.load_with_info(path)
        expected, spec = params_of(ours.model), ours.model.spec
        epsilon = getattr(again.model.spec, "weight_epsilon", None)
        if epsilon != getattr(spec, "weight_epsilon", None):  # a scale of kernels makes up for it
            factor = np.float32(math.sqrt(epsilon / spec.weight_epsilon))
            expected = {n: x * factor if is_standardized(n) else x for n, x in expected.items()}
            spec = dataclasses.replace(spec, weight_epsilon=epsilon)
        if to == "timm" and fields.get("registers") == 1:  # the class token has no position there
            table = expected["positions/embedding"]
            added = {"cls": expected["cls"] + table[0], "positions/embedding": table.copy()}
            added["positions/embedding"][0] = 0
            expected |= added
        assert again.model.spec == spec
        jax.tree.map(np.testing.assert_array_equal, params_of(again.model), expected)
        if to != "google_npz":  # which has no place for these
            assert again.model.preprocess == ours.model.preprocess
            assert again.class_names == ours.class_names
    assert {path.stem for path in tmp_path.iterdir()} == set(held)


SHALLOW = TOY | {"depth": 1}
WRITTEN = {
    "vit": ("ViT-Ti/4", SHALLOW, "huggingface"),
    "deit": ("ViT-Ti/4", {**SHALLOW, "distillation_token": True}, "timm"),
    "dinov2": ("ViT-Ti/4", {**SHALLOW, **DINOV2}, "huggingface"),
    "dinov3": ("ViT-Ti/4", {**SHALLOW, **DINOV3, "mlp": "swiglu"}, "huggingface"),
    "big_vision": ("ViT-Ti/4", {**SHALLOW, "pool": "map"}, "google_npz"),
    "bit": ("R50x1", BIT, "google_npz"),
    "hybrid": ("R50+ViT-B/16", {**HYBRID, "depth": 1, "units": (1,), "patch_size": 4},
               "google_npz"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_every_array_is_needed_in_its_shape(tmp_path, kind):
    name, fields, to = WRITTEN[kind]
    weights.save(randomised(name, **fields), tmp_path / "out.npz", to)
    opened = detect_format.open_weights(tmp_path / "out.npz")
    assert understand(opened).name
    for key, x in opened.tensors.items():
        if key.endswith("mask_token"):
            continue
        other = from_array(np.zeros((*x.shape, 5), x.dtype))
        for changed in ({key: other}, {f"x.{key}": x}):
            rest = {n: tensor for n, tensor in opened.tensors.items() if n != key}
            with pytest.raises(UserError) as error:
                understand(dataclasses.replace(opened, tensors=rest | changed))
            assert key.removeprefix("vit.") in str(error.value)


@pytest.mark.parametrize(
    ("fields", "to"),
    [
        ({"class_position": False, "gelu": "exact"}, "timm"),
        ({"class_position": False}, "huggingface"),
        ({"class_position": False, "position_embedding": "sincos_1d"}, "google_npz"),
        ({"position_embedding": "sincos_2d"}, "huggingface"),
        ({"registers": 2, "gelu": "exact", "position_embedding": "sincos_2d"}, "timm"),
        ({"registers": 2, "pool": "avg", "position_embedding": "sincos_1d"}, "timm"),
    ],
)
def test_positions_in_another_form_compute_the_same(tmp_path, toy, images, fields, to):
    ours = toy(**fields)
    weights.save(ours, tmp_path / "out.npz", to)
    again = weights.load(tmp_path / "out.npz")
    np.testing.assert_allclose(again(images), ours.model(images), atol=ROUNDING)


def test_the_table_has_these_rows():
    cells = [
        line.split("|")[1].strip() for line in DOCS.read_text().splitlines() if "|" in line[:1]
    ]
    start = cells.index("plain ViT with") + 2
    assert cells[start : start + len(ROWS)] == list(ROWS)
