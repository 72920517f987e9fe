"""Hugging Face's ViT, I-JEPA and BiT, in and out.

ViT is ViTForImageClassification, ViTModel and ViTForMaskedImageModeling. ViTModel's pooler is a
dense layer with tanh on the class token, which is called pre-logits here. GELU is exact and the
epsilon of layer norms 1e-12 by default. I-JEPA (IJepaForImageClassification, IJepaModel) is the
same without a class token: its classifier sees the mean of the patches, as a plain ViT with average
pooling does here.

BiT is BitForImageClassification and BitModel with `layer_type` "preactivation" and the padding of
the released models; the other kind is the ResNet of hybrids with a head. Weights are divided by
sqrt(variance + 1e-8).
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.bit import BiTSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.nn.norm import GROUPS
from vit_jax.nn.resnet.resnet import EXPANSION
from vit_jax.weights import architecture, config_consistency, json_fields
from vit_jax.weights.config_consistency import Size
from vit_jax.weights.external import ClassNames, Documents, ExternalWeights, Format, may_be
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.formats import huggingface_json
from vit_jax.weights.layout import Layout, ResNetNames, resnet_rules, rule
from vit_jax.weights.match import Match

HINT = "Write --to=google_npz or checkpoint."


class _Names(NamedTuple):
    """Names in which files differ: a layer, its query, key, value and output, and its MLP."""

    layer: str
    attention: tuple[str, str, str, str]
    fc1: str
    fc2: str


def _layout(title: str, called: _Names, *, ijepa: bool) -> Layout:
    layer, attention, fc1, fc2 = called
    *qkv, out = (f"{layer}.{{}}.{name}" for name in attention)
    # The pooler of I-JEPA takes the first patch: no model here computes that.
    pooler = (
        rule("pre_logits/kernel", "pooler.dense.weight", "E D"),
        rule("pre_logits/bias", "pooler.dense.bias", "E"),
    )
    names = lambda leaf: " ".join(f"{name}.{leaf}" for name in qkv)
    rules = (
        rule("patches/kernel", "embeddings.patch_embeddings.projection.weight", "D 3 P p"),
        rule("patches/bias", "embeddings.patch_embeddings.projection.bias", "D"),
        *(() if ijepa else (rule("cls", "embeddings.cls_token", "1 1 D"),)),
        rule("positions/embedding", "embeddings.position_embeddings", "1 N D"),
        rule("norm1/scale", f"{layer}.{{}}.layernorm_before.weight", "D"),
        rule("norm1/bias", f"{layer}.{{}}.layernorm_before.bias", "D"),
        rule("attention/qkv/kernel", names("weight"), "(H K) D"),
        rule("attention/qkv/bias", names("bias"), "(H K)"),
        rule("attention/out/kernel", f"{out}.weight", "D (H K)"),
        rule("attention/out/bias", f"{out}.bias", "D"),
        rule("norm2/scale", f"{layer}.{{}}.layernorm_after.weight", "D"),
        rule("norm2/bias", f"{layer}.{{}}.layernorm_after.bias", "D"),
        rule("mlp/fc1/kernel", f"{layer}.{{}}.{fc1}.weight", "M D"),
        rule("mlp/fc1/bias", f"{layer}.{{}}.{fc1}.bias", "M"),
        rule("mlp/fc2/kernel", f"{layer}.{{}}.{fc2}.weight", "D M"),
        rule("mlp/fc2/bias", f"{layer}.{{}}.{fc2}.bias", "D"),
        rule("norm/scale", "layernorm.weight", "D"),
        rule("norm/bias", "layernorm.bias", "D"),
        *(() if ijepa else pooler),
        rule("head/kernel", "classifier.weight", "C D"),
        rule("head/bias", "classifier.bias", "C"),
    )
    # Ignored are further parts of masked image modelling.
    ignored = (r"embeddings\.mask_token", r"decoder\.0\.(weight|bias)")
    return Layout(
        title,
        rules,
        prefixes=("", "ijepa." if ijepa else "vit."),
        ignored=ignored,
        needed=() if ijepa else ("cls",),
    )


_FILES = _Names(
    "encoder.layer",
    (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    "intermediate.dense",
    "output.dense",
)
# transformers 5 still writes the names above into files, but has renamed its modules.
_MODULES = _Names(
    "layers",
    ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
    "mlp.fc1",
    "mlp.fc2",
)
_STATE_DICT = "the state_dict() of Hugging Face's {} since transformers 5"
_VIT = _layout("Hugging Face's ViT", _FILES, ijepa=False)
_IJEPA = _layout("Hugging Face's I-JEPA", _FILES, ijepa=True)
_LAYOUTS = {
    "vit": (_VIT, _layout(_STATE_DICT.format("ViT"), _MODULES, ijepa=False)),
    "ijepa": (_IJEPA, _layout(_STATE_DICT.format("I-JEPA"), _MODULES, ijepa=True)),
}


def _layouts(opened: Opened) -> tuple[Layout, ...]:
    kind = (opened.config or {}).get("model_type")
    return _LAYOUTS[kind] if kind else _LAYOUTS["vit"] + _LAYOUTS["ijepa"]


def _sizes(match: Match, _: Mapping[str, Any]) -> Iterator[Size]:
    sizes = match.sizes
    yield from config_consistency.tokens(sizes)
    yield Size("intermediate_size", sizes["M"])
    yield config_consistency.images("image_size", sizes["N"], sizes["P"], match.has("cls"))
    yield config_consistency.qkv_bias(match)
    if match.has("pre_logits"):
        yield Size("pooler_output_size", sizes["E"])
    yield from config_consistency.labels(match)


def _read(opened: Opened, match: Match, given: tuple[int, int] | None) -> ExternalWeights:
    config = opened.config or {}
    size = json_fields.sides("image_size", config.get("image_size", 224)) if config else None
    pads, image_size = architecture.image_size(opened, match, given, size)
    huggingface_json.check_qkv_bias(config, match)
    if config.get("pooler_act", "tanh") != "tanh":
        raise UserError(
            f"config.json: pooler_act={config['pooler_act']!r}; only tanh is supported."
        )
    return architecture.external_weights(
        match,
        huggingface_json.preprocess(opened.preprocessor or {}, image_size),
        fields={
            "gelu": huggingface_json.gelu(config),
            "norm_epsilon": json_fields.positive(config, "layer_norm_eps", 1e-12),
        },
        class_names=huggingface_json.class_names(config, match),
        pads_class_position=pads,
    )


def _layout_for(spec: ViTSpec) -> Layout:
    return _IJEPA if spec.pool == "avg" else _VIT


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    if spec.pool not in ("cls", "avg"):
        raise UserError(
            f"Hugging Face's ViT sees the class token and its I-JEPA the mean of the patches; this "
            f"model has pool={spec.pool}: write it by python -m vit_jax.convert --to=timm or "
            "--to=google_npz."
        )
    if spec.pre_logits and spec.pool == "avg":
        raise UserError(
            "Hugging Face's I-JEPA, which is its ViT with average pooling, has no layer between "
            "mean and head, this model has pre-logits: write it by python -m vit_jax.convert "
            "--to=google_npz."
        )
    if spec.pre_logits and num_classes:
        raise UserError(
            "Hugging Face's ViTForImageClassification has no layer between backbone and head, this "
            "model has pre-logits: leave the head out (--head=drop), which makes it ViTModel with "
            "a pooler, or write it by python -m vit_jax.convert --to=google_npz."
        )
    kind, model_type = ("IJepa", "ijepa") if spec.pool == "avg" else ("ViT", "vit")
    suffix = "ForImageClassification" if num_classes else "Model"
    config = huggingface_json.vit_config(
        spec, f"{kind}{suffix}", model_type, about.image_size, num_classes, names
    ) | {
        "intermediate_size": spec.mlp_dim,
        "qkv_bias": spec.qkv_bias == "all",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pooler_act": "tanh",
        "pooler_output_size": spec.width,
    }
    return huggingface_json.documents(config, about)


def _with_prefix(prefix: str, tensors: Tensors, _: Any, num_classes: int) -> Tensors:
    """Names as in a model with a head, the only part without the prefix."""
    if not num_classes:
        return tensors
    return {n if n.startswith("classifier.") else prefix + n: x for n, x in tensors.items()}


def _packed_vit(tensors: Tensors, spec: ViTSpec, num_classes: int) -> Tensors:
    return _with_prefix(_layout_for(spec).prefixes[-1], tensors, spec, num_classes)


VIT = Format(
    destination="huggingface",
    model_types=tuple(_LAYOUTS),
    recognises=lambda opened: may_be(opened, *_LAYOUTS),
    layouts=_layouts,
    heads=architecture.heads,
    sizes=_sizes,
    reads=_read,
    holds=lambda spec, _: type(spec) is ViTSpec,
    layout_for=_layout_for,
    documents=_documents,
    packed=_packed_vit,
    hint=HINT,
)

# --- BiT

_BIT_NAMES = ResNetNames(
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
        *resnet_rules("resnet", _BIT_NAMES, pre_activation=True),
        rule("norm/scale", "norm.weight", "D"),
        rule("norm/bias", "norm.bias", "D"),
        rule("head/kernel", "classifier.1.weight", "C D"),
        rule("head/bias", "classifier.1.bias", "C"),
    ),
    prefixes=("", "bit."),
    computes={"weight_epsilon": 1e-8, "weight_epsilon_of": "variance", "group_norm_epsilon": 1e-5},
)
# Entries of config.json that make the arrays a BiT; they are the defaults.
_BIT_CONFIG: dict[str, Any] = {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "num_groups": GROUPS,
    "hidden_act": "relu",
    "width_factor": 1,
    "num_channels": 3,
}
# Defaults of BitImageProcessor.
_BIT_PROCESSOR = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _bit_layouts(opened: Opened) -> tuple[Layout, ...]:
    if "model_type" in (opened.config or {}):
        _check_bit(opened)  # arrays of the other kind differ in ways that mislead
    return (_BIT,)


def _check_bit(opened: Opened) -> None:
    """UserError for another kind of ResNet."""
    config = opened.config or {}
    other = [
        f"{key}={config[key]!r} (here: {value!r})"
        for key, value in _BIT_CONFIG.items()
        if config.get(key, value) != value
    ]
    depths, stride = config.get("depths", (3, 4, 6, 3)), config.get("output_stride", 32)
    if isinstance(depths, list | tuple) and stride != max(32, 2 ** (1 + len(depths))):
        other.append(f"output_stride={stride!r}")
    if other:
        raise UserError(f"config.json: this model cannot be computed here: {', '.join(other)}.")


def _bit_widths(units: tuple[int, ...], root_width: int) -> list[int]:
    return [EXPANSION * root_width * 2**stage for stage in range(len(units))]


def _bit_sizes(match: Match, _: Mapping[str, Any]) -> Iterator[Size]:
    shape = architecture.resnet_shape(match)
    assert shape
    yield Size("embedding_size", shape.root_width)
    yield Size("depths", list(shape.units))
    yield Size("hidden_sizes", _bit_widths(shape.units, shape.root_width))
    yield from config_consistency.labels(match)


def _read_bit(opened: Opened, match: Match, given: tuple[int, int] | None) -> ExternalWeights:
    _check_bit(opened)
    _, image_size = architecture.image_size(opened, match, given)
    if opened.preprocessor is None:  # the whole image
        preprocess = models.Preprocess(image_size, image_size)
    else:
        document = {**_BIT_PROCESSOR, **opened.preprocessor}
        if isinstance(document["size"], int):
            document["size"] = {"shortest_edge": document["size"]}
        preprocess = huggingface_json.preprocess_of_any_size(document)
    names = huggingface_json.class_names(opened.config or {}, match)
    return architecture.external_weights(match, preprocess, class_names=names)


def _bit_documents(
    spec: BiTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    config = {
        "architectures": ["BitForImageClassification" if num_classes else "BitModel"],
        "model_type": "bit",
        **_BIT_CONFIG,
        "embedding_size": spec.root_width,
        "hidden_sizes": _bit_widths(spec.units, spec.root_width),
        "depths": list(spec.units),
        "output_stride": max(32, spec.shape.stride),
        "torch_dtype": "float32",
        **huggingface_json.labels(num_classes, names),
    }
    documents = huggingface_json.documents(config, about)
    documents["preprocessor_config.json"]["image_processor_type"] = "BitImageProcessor"
    return documents


BIT = Format(
    destination="huggingface",
    model_types=("bit",),
    recognises=lambda opened: may_be(opened, "bit"),
    layouts=_bit_layouts,
    sizes=_bit_sizes,
    reads=_read_bit,
    holds=lambda spec, _: isinstance(spec, BiTSpec),
    layout_for=lambda _: _BIT,
    documents=_bit_documents,
    packed=functools.partial(_with_prefix, "bit."),
    hint=HINT,
)
