"""The fields of models: their declarations hold in the config, its page and the formats."""

import pytest

from tests.messages import refused
from vit_jax import config as configs
from vit_jax import models
from vit_jax.core.schema import fields
from vit_jax.weights.saving import DESTINATIONS

OTHER_PROJECTS = [name for name in DESTINATIONS if name != "checkpoint"]
ALL = models.config_fields()


def test_every_field_of_a_model_is_one_of_the_config_or_declared_not_to_be():
    by_name_alone = {"patch_size", "weight_epsilon", "weight_epsilon_of", "group_norm_epsilon"}
    of_weights = {"probabilities"}
    for name in ("ViT-B/16", "R50+ViT-B/16", "R50x1", "Axial-ViT-B/16", "AxialResNet-50"):
        declared = fields.of(models.spec(name))
        assert declared.keys() - by_name_alone - of_weights <= ALL.keys()
    assert set(configs.resolve({}).model.__dict__) == {"name", *ALL}


# A valid non-default value of each field, in a model that has it.
OTHER_VALUES = {
    "position_at": "shared", "registers": 1, "mlp": "swiglu", "parallel": True, "qk_norm": True,
    "dense_bias": False, "norm": "rms", "qkv_bias": "query_value", "pool": "cls_avg",
    "position_embedding": "rotary_2d",
}  # fmt: skip


@pytest.mark.parametrize("to", OTHER_PROJECTS)
def test_formats_without_a_place_for_a_field_are_known(to):
    plain = models.spec("ViT-B/16")
    assert not fields.without_a_place(plain, to)
    for name, value in OTHER_VALUES.items():
        spec = models.spec("ViT-B/16", **{name: value})
        known = to == "timm" and name == "registers"
        assert fields.without_a_place(spec, to) == ([] if known else [f"{name}={value}"])
    keeps = {"gelu": "exact", "norm_epsilon": 1e-5, "layer_scale": 0.1, "class_position": False}
    for name, value in (keeps | {"depth": 1, "remat": "full", "pool": "map"}).items():
        assert not fields.without_a_place(models.spec("ViT-B/16", **{name: value}), to)
    no_bias = models.spec("ViT-B/16", qkv_bias="none")
    assert bool(fields.without_a_place(no_bias, to)) == (to == "google_npz")


def test_what_weights_are_trained_with():
    spec = models.spec("ViT-B/16")
    hidden = set(fields.trained(spec, as_=fields.HIDDEN))
    shapes = set(fields.trained(spec, as_=fields.IN_SHAPES))
    assert hidden | shapes == models.architecture(spec).keys() and not hidden & shapes
    assert hidden == {
        "mlp", "gelu", "norm", "norm_epsilon", "position_embedding", "position_at", "class_position"
    }  # fmt: skip
    # Fields that only say how weights are trained or computed are not among them.
    assert not {"dropout", "initialization", "dtype", "scan", "remat", "head_bias"} & (
        hidden | shapes
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", 0),
        ("depth", 1.5),
        ("dropout", float("nan")),
        ("qk_norm", 1),
        ("residual_dtype", "bfloat16"),
        ("layer_scale", -1),
    ],
)
def test_python_checks_what_the_config_does(name, value):
    with refused(f"model.{name}={value!r}"):
        models.spec("ViT-B/16", **{name: value})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ViT-B/16", "norm_epsilon"),
        ("R50x1", "group_norm_epsilon"),
        ("R50+ViT-B/16", "group_norm_epsilon"),
        ("AxialResNet-50", "group_norm_epsilon"),
        ("EfficientNet-B0", "batch_norm_epsilon"),
    ],
)
def test_norms_add_more_than_0_to_the_variance(name, field):
    assert getattr(models.spec(name, **{field: 1e-9}), field) == 1e-9
    with refused(f"model.{field}=0.0"):
        models.spec(name, **{field: 0.0})


def test_units_are_checked_one_by_one():
    with refused("model.units"):
        models.spec("R50x1", units=(3, 0))


def test_bounds_hold_for_each_number_of_a_list_too():
    assert models.spec("R50x1", units=[1, 2]).units == [1, 2]
    with refused("model.units"):
        models.spec("R50x1", units=[0, 2])
