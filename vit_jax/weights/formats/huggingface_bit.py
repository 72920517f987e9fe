"""Hugging Face's BiT: BitForImageClassification and BitModel.

Only what is a BiT: `layer_type` "preactivation" with padding as it was released; the other kind is
the ResNet of hybrids with a head. Weights are divided by sqrt(variance + 1e-8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.nn.norm import GROUPS
from vit_jax.nn.resnet import EXPANSION
from vit_jax.weights.formats import huggingface, resnet_rules
from vit_jax.weights.layout import Layout, rule

_NAMES = resnet_rules.Names(
    root={"root/conv": "embedder.convolution"},
    unit={
        **{part: part for i in (1, 2, 3) for part in (f"conv{i}", f"norm{i}")},
        "projection": "downsample.conv",
    },
    folder="encoder.stages.%d.layers.{}.",
    first=0,
    leaves=resnet_rules.TORCH,
    torch=True,
)
LAYOUT = Layout(
    title="Hugging Face's BiT",
    rules=(
        *resnet_rules.rules("resnet", _NAMES, pre_activation=True),
        rule("norm/scale", "norm.weight", "D"),
        rule("norm/bias", "norm.bias", "D"),
        rule("head/kernel", "classifier.1.weight", "C D"),
        rule("head/bias", "classifier.1.bias", "C"),
    ),
    prefixes=("", "bit."),
    computes={"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5},
)
# What config.json has to say for the arrays to be a BiT, as it does by default.
NEEDED: dict[str, Any] = {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "num_groups": GROUPS,
    "hidden_act": "relu",
    "width_factor": 1,
    "num_channels": 3,
}
# What BitImageProcessor does where preprocessor_config.json does not say otherwise.
_PROCESSOR = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def fields(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The model's fields that its config.json tells: none. UserError for another kind of ResNet."""
    config = config or {}
    other = [
        f"{key}={config[key]!r} (here: {value!r})"
        for key, value in NEEDED.items()
        if config.get(key, value) != value
    ]
    depths, stride = config.get("depths", (3, 4, 6, 3)), config.get("output_stride", 32)
    if isinstance(depths, list | tuple) and stride != max(32, 2 ** (1 + len(depths))):
        other.append(f"output_stride={stride!r}")
    if other:
        raise UserError(f"config.json: this model cannot be computed here: {', '.join(other)}.")
    return {}


def layout_for(_: BiTSpec) -> Layout:
    """The one that a model is written in."""
    return LAYOUT


def preprocess(
    document: Mapping[str, Any] | None, image_size: tuple[int, int]
) -> models.Preprocess:
    """From preprocessor_config.json; without it the whole image, at `image_size`.

    Raises:
      UserError: for steps that prediction does not have.
    """
    if document is None:
        return models.Preprocess(image_size, image_size)
    document = {**_PROCESSOR, **document}
    if isinstance(document["size"], int):
        document["size"] = {"shortest_edge": document["size"]}
    return huggingface.preprocess_of_any_size(document)


def documents(
    spec: BiTSpec, num_classes: int, names: tuple[str, ...] | None, about: models.Preprocess
) -> dict[str, dict[str, Any]]:
    """config.json and preprocessor_config.json."""
    widths = [EXPANSION * spec.root_width * 2**stage for stage in range(len(spec.units))]
    config = {
        "architectures": ["BitForImageClassification" if num_classes else "BitModel"],
        "model_type": "bit",
        **NEEDED,
        "embedding_size": spec.root_width,
        "hidden_sizes": widths,
        "depths": list(spec.units),
        "output_stride": max(32, spec.shape.stride),
        "torch_dtype": "float32",
        **huggingface.labels(num_classes, names),
    }
    processor = huggingface.processor(about) | {"image_processor_type": "BitImageProcessor"}
    return {"config.json": config, "preprocessor_config.json": processor}
