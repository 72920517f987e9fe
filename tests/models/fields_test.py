"""The fields of models: their declarations hold in the config, its page and the formats."""

import pytest

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
    whole = configs.resolve({"model": {"name": None}}).model
    assert set(whole.__dict__) == {"name", *ALL}


# A valid non-default value of each field, in a model that has it.
OTHER_VALUES = {
    "position_at": "shared", "registers": 1, "mlp": "swiglu", "parallel": True, "qk_norm": True,
    "dense_bias": False, "norm": "rms", "qkv_bias": "query_value", "pool": "cls_avg",
    "position_embedding": "rotary_2d", "norm_branch": True, "patch_bias": False, "pre_norm": True,
    "patch_norm": True, "class_token": True, "pool_prefix": True, "final_norm": "features",
    "attention_norm": True, "mlp_norm": True, "pool_heads": 6, "pool_mlp_dim": 384,
    "logit_cap": 30.0, "position_hidden": 8, "unit_features": True, "value_residual": 0.5,
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
        "mlp", "gelu", "norm", "norm_epsilon", "norm_stream", "position_embedding", "position_at",
        "class_position", "final_norm", "pool_prefix", "rotary_base", "rotary_grid",
        "rotary_offset", "rotary_columns_first", "pool_heads", "logit_cap",
    }  # fmt: skip
    # Fields that only say how weights are trained or computed are not among them.
    assert not {"dropout", "initialization", "dtype", "scan", "remat", "head_bias"} & (
        hidden | shapes
    )
