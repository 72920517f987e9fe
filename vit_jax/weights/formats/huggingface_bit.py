"""Hugging Face's BiT, in and out.

BiT is BitForImageClassification and BitModel with `layer_type` "preactivation" and the padding of
the released models; the other kind is the ResNet of hybrids with a head. Weights are divided by
sqrt(variance + 1e-8).
"""

import functools
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.nn.resnet_spec import EXPANSION, GROUPS
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface, huggingface_processors
from vit_jax.weights.layout import Layout, ResNetNames, resnet_rules, torch_linear, torch_norm
from vit_jax.weights.match import best

_NAMES = ResNetNames(
    root={"root/conv": "embedder.convolution"},
    unit={
        **{part: part for i in (1, 2, 3) for part in (f"conv{i}", f"norm{i}")},
        "projection": "downsample.conv",
    },
    folder="encoder.stages.%d.layers.{}.",
)
_BIT = Layout(
    title="Hugging Face's BiT",
    rules=(
        *resnet_rules("resnet", _NAMES, pre_activation=True),
        *torch_norm("norm", "norm"),
        *torch_linear("head", "classifier.1", "C D", "C"),
    ),
    prefixes=("", "bit."),
    computes={"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5},
)
# Entries of config.json that make the arrays a BiT; they are the defaults.
_CONFIG: dict[str, Any] = {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "num_groups": GROUPS,
    "hidden_act": "relu",
    "width_factor": 1,
    "num_channels": 3,
}
# Further defaults of transformers' BitConfig.
SIZES = {"embedding_size": 64, "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}


def _check_config(opened: Opened) -> None:
    """UserError for another kind of ResNet."""
    config = opened.config or {}
    other = [
        f"{key}={config[key]!r} (here: {value!r})"
        for key, value in _CONFIG.items()
        if config.get(key, value) != value
    ]
    depths, stride = config.get("depths", (3, 4, 6, 3)), config.get("output_stride", 32)
    if isinstance(depths, list | tuple) and stride != max(32, 2 ** (1 + len(depths))):
        other.append(f"output_stride={stride!r}")
    if other:
        raise UserError(f"config.json: this model cannot be computed here: {', '.join(other)}.")


def _widths(units: tuple[int, ...], root_width: int) -> list[int]:
    return [EXPANSION * root_width * 2**stage for stage in range(len(units))]


def _read(opened: Opened, given: Given) -> ExternalWeights:
    if "model_type" in (opened.config or {}):
        _check_config(opened)  # arrays of the other kind differ in ways that mislead
    match = best([_BIT], opened.tensors)
    shape = match.resnet
    assert shape
    sizes = {
        "embedding_size": shape.root_width,
        "depths": list(shape.units),
        "hidden_sizes": _widths(shape.units, shape.root_width),
    }
    config_json.check_sizes(opened, sizes | config_json.num_labels(match), SIZES)
    huggingface.check_head(opened, match)
    _check_config(opened)
    _, _, image_size = external.with_image_size(opened, match, given)
    preprocess = huggingface_processors.read(opened, image_size, any_size=True)
    names = huggingface.class_names(opened.config or {}, match)
    assumed = () if opened.preprocessor else ("preprocess",)
    return external.external_weights(
        match,
        preprocess,
        fields={"probabilities": huggingface.probabilities(opened.config or {}, match)},
        class_names=names,
        assumed=assumed,
    )


def _documents(
    spec: BiTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    config = {
        "architectures": ["BitForImageClassification" if num_classes else "BitModel"],
        "model_type": "bit",
        **_CONFIG,
        "embedding_size": spec.root_width,
        "hidden_sizes": _widths(spec.units, spec.root_width),
        "depths": list(spec.units),
        "output_stride": max(32, spec.map_stride),
        "torch_dtype": "float32",
        **huggingface.labels(spec, num_classes, names),
    }
    documents = huggingface.documents(config, about)
    documents[huggingface_processors.FILE]["image_processor_type"] = "BitImageProcessor"
    return documents


FORMAT = Format(
    destination="huggingface",
    model_types=("bit",),
    reads=_read,
    holds=lambda spec, _: type(spec) is BiTSpec,
    layout_for=lambda _: _BIT,
    documents=_documents,
    packed=functools.partial(huggingface.with_prefix, "bit."),
    hint=huggingface.HINT,
)
