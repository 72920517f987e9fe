"""Hugging Face's ViT, I-JEPA, DeiT and BiT, in and out, and the JSON that its models share.

ViT is ViTForImageClassification, ViTModel and ViTForMaskedImageModeling, and the encoder of
ViTMAEModel and ViTMAEForPreTraining. ViTModel's pooler is a dense layer with tanh on the class
token, which is called pre-logits here. GELU is exact and the epsilon of layer norms 1e-12 by
default. I-JEPA (IJepaForImageClassification, IJepaModel) is the same without a class token: its
classifier sees the mean of the patches, as a plain ViT with average pooling does here.

DeiTs are ViTs with a distillation token: DeiTForImageClassificationWithTeacher, which averages the
logits of both heads, and DeiTModel without its pooler. Where head or pooler see the class token
alone, as in DeiTForImageClassification, the distillation token is a register here. A DeiT without
that token is a ViT there too.

BiT is BitForImageClassification and BitModel with `layer_type` "preactivation" and the padding of
the released models; the other kind is the ResNet of hybrids with a head. Weights are divided by
sqrt(variance + 1e-8).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.core.class_names import placeholder
from vit_jax.models.bit import BiTSpec
from vit_jax.models.layers.norm import GROUPS
from vit_jax.models.layers.resnet import EXPANSION
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import (
    ClassNames,
    Documents,
    ExternalWeights,
    Format,
    ModelToWrite,
)
from vit_jax.weights.files import Tensor, Tensors
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface_processors
from vit_jax.weights.match import Match, best
from vit_jax.weights.tables import Layout, rules

# The starts of the names of classifiers.
HEAD_PREFIXES = ("classifier.", "cls_classifier.", "distillation_classifier.")
# Defaults of transformers' ViTConfig, ViTMAEConfig, DeiTConfig and IJepaConfig.
VIT_CONFIG: Mapping[str, Any] = {
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "pooler_act": "tanh",
}
EPSILONS: Mapping[Any, Mapping[str, Any]] = {"vit_msn": {"layer_norm_eps": 1e-6}}
# Entries that arrays do not show: their defaults are assumed where there is no config.json.
HIDDEN = ("hidden_act", "layer_norm_eps", "pooler_act")
# Values of `probabilities`, by the word before "_label_classification" in problem_type.
_KINDS, _OTHER = {"single": "softmax", "multi": "sigmoid"}, "regression"
GELUS = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
GELUS |= {"quick_gelu": "quick"}
_HIDDEN_ACTS = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}


_TABLE = """
patches             : embeddings.patch_embeddings.projection
positions/embedding : embeddings.position_embeddings : 1 *
norm1               : encoder.layer.{}.layernorm_before
attention/qkv       : encoder.layer.{}.attention.attention.[query key value]
attention/out       : encoder.layer.{}.attention.output.dense
norm2               : encoder.layer.{}.layernorm_after
mlp/fc1             : encoder.layer.{}.intermediate.dense
mlp/fc2             : encoder.layer.{}.output.dense
norm                : layernorm
"""
_HEAD = "head : classifier"
_CLS = "cls : embeddings.cls_token : 1 1 *"
# That of I-JEPA takes the first patch: no model here computes that.
_POOLER = "pre_logits : pooler.dense"
_DEIT = """
distillation_token : embeddings.distillation_token : 1 1 *
head               : cls_classifier
distillation_head  : distillation_classifier
"""
_DEIT_REGISTER = "registers : embeddings.distillation_token : 1 *"
# Modules of transformers 5 -> their names in files, which it still writes.
IN_FILES = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def _layout(title: str, prefix: str, *tables: str, needed: tuple[str, ...] = ()) -> Layout:
    return Layout(
        f"Hugging Face's {title}",
        rules(_TABLE, *tables),
        prefixes=("", prefix),
        # Further parts of masked image modelling and of MAE.
        ignored=(r"embeddings\.mask_token", r"decoder\..*"),
        needed=needed,
    )


_VIT = (_layout("ViT", "vit.", _HEAD, _CLS, _POOLER, needed=("cls",)),)
LAYOUTS = {
    "vit": _VIT,
    "vit_mae": _VIT,
    "vit_msn": _VIT,
    "ijepa": (_layout("I-JEPA", "ijepa.", _HEAD),),
    "deit": (
        _layout("DeiT", "deit.", _CLS, _DEIT, needed=("cls", "distillation_token")),
        _layout(
            "DeiT with a head or pooler of the class token",
            "deit.", _HEAD, _CLS, _POOLER, _DEIT_REGISTER, needed=("cls", "registers"),
        ),
    ),
}  # fmt: skip


def _as_in_files(tensors: Tensors) -> Tensors:
    """Arrays by the names that files have, those of a state_dict() too."""

    def renamed(layer: re.Match) -> str:
        return f"encoder.layer.{layer[1]}.{IN_FILES.get(layer[2], layer[2])}."

    of_layers = re.compile(r"(?<!encoder\.)\blayers\.(\d+)\.(.*)\.(?=\w+$)")
    return {of_layers.sub(renamed, name): x for name, x in tensors.items()}


def _read(opened: Opened) -> ExternalWeights:
    kind = opened.entries.get("model_type")
    layouts = LAYOUTS[kind] if kind else LAYOUTS["vit"] + LAYOUTS["ijepa"]
    read, notes = _without_pooler(_as_in_files(opened.tensors))
    if kind == "vit_msn":  # transformers 5 writes the prefix at some names alone
        read = {name.removeprefix("vit."): x for name, x in read.items()}
    match = best(layouts, read)
    config = with_defaults(opened, {**VIT_CONFIG, **EPSILONS.get(kind, {})})
    if match.has("pre_logits"):
        external.word(config, "pooler_act", "tanh", ("tanh",))
    check_sizes(opened, match)
    size = external.sides("image_size", config["image_size"]) if opened.config else None
    match, image_size = external.with_image_size(opened, match, size)
    return external.external_weights(
        external.with_heads(opened, match, config["num_attention_heads"]),
        huggingface_processors.read(opened, image_size),
        fields=fields(config, match) | {"registers": match.sizes.get("R", 0)},
        class_names=class_names(config, match),
        assumed=assumed(opened),
        notes=notes,
    )


def _without_pooler(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """(arrays to read, a note on a pooler); no classifier of Hugging Face's ViTs computes one."""
    pooler = [name for name in tensors if ".pooler.dense." in f".{name}"]
    if not pooler or not any(name.startswith(HEAD_PREFIXES) for name in tensors):
        return tensors, ()
    note = f"a classifier does not compute with {', '.join(pooler)}: left out."
    return {name: x for name, x in tensors.items() if name not in pooler}, (note,)


def assumed(opened: Opened) -> tuple[str, ...]:
    """Names of the fields that neither config.json nor preprocessor_config.json states."""
    images = () if opened.preprocessor else ("preprocess",)
    return images if opened.config else ("gelu", "norm_epsilon", *images)


def _type(spec: ViTSpec) -> str:
    if spec.distillation_token or spec.registers:
        return "deit"
    return "ijepa" if spec.pool == "avg" else "vit"


def _documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    layer_follows = spec.pre_logits and (model.num_classes or spec.pool == "avg")
    if spec.pool not in ("cls", "avg") or layer_follows:
        fields = {"pool": spec.pool, "pre_logits": spec.pre_logits}
        fields["num_classes"] = model.num_classes
        external.lacks("Hugging Face's ViT", fields)
    kind = _type(spec)
    architecture = {"vit": "ViT", "ijepa": "IJepa", "deit": "DeiT"}[kind]
    architecture += "ForImageClassification" if model.num_classes else "Model"
    if spec.distillation_token and model.num_classes:
        architecture += "WithTeacher"
    config = vit_config(model, architecture, kind) | {
        "intermediate_size": spec.mlp_dim,
        "qkv_bias": spec.qkv_bias == "all",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if not spec.distillation_token:
        config |= {"pooler_act": "tanh", "pooler_output_size": spec.width}
    return documents(config, model)


def with_prefix(prefix: str, tensors: Tensors, num_classes: int) -> Tensors:
    """Names as in a model with a head, the only part without the prefix."""
    if not num_classes:
        return tensors
    return {n if n.startswith(HEAD_PREFIXES) else prefix + n: x for n, x in tensors.items()}


FORMAT = Format(
    destination="huggingface",
    model_types=tuple(LAYOUTS),
    reads=_read,
    holds=lambda spec, _: type(spec) is ViTSpec,
    layout_for=lambda spec: LAYOUTS[_type(spec)][0],
    documents=_documents,
    packed=lambda tensors, model: with_prefix(f"{_type(model.spec)}.", tensors, model.num_classes),
)


def _with_register_position(tensors: Tensors, model: ModelToWrite) -> Tensors:
    """Arrays with a row of zeros for the register, which has its position in itself."""
    name = "embeddings.position_embeddings"
    table = tensors[name]
    _, rows, width = table.shape
    longer = Tensor(
        (1, rows + 1, width), table.dtype, lambda: np.insert(table.read(), 1, 0, axis=1)
    )
    return with_prefix("deit.", {**tensors, name: longer}, model.num_classes)


DEIT = dataclasses.replace(
    FORMAT,
    model_types=(),  # those are read by the one above
    needs_type=True,
    # Without a head and a pooler the register would come back as a distillation token.
    holds=lambda spec, num_classes: (
        type(spec) is ViTSpec
        and spec.registers == 1
        and spec.pool == "cls"
        and bool(num_classes or spec.pre_logits)
    ),
    layout_for=lambda _: LAYOUTS["deit"][1],
    packed=_with_register_position,
    states=("registers",),
)

# --- JSON that Hugging Face's models share


def with_defaults(opened: Opened, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a config.json by its defaults; without one, has those that arrays do not show."""
    if opened.config is None:
        return {key: x if key in HIDDEN else None for key, x in defaults.items()}
    return {**defaults, **{key: x for key, x in opened.config.items() if x is not None}}


def check_sizes(opened: Opened, match: Match) -> None:
    """Raises UserError where config.json is of another model, or names a head that is not there."""
    sizes = match.sizes
    stated = {"hidden_size": sizes["D"], "num_hidden_layers": sizes["L"], "patch_size": sizes["P"]}
    external.check_sizes(opened, stated | {"qkv_bias": match.has("qkv_bias")})
    check_head(opened, match)


def check_head(opened: Opened, match: Match) -> None:
    """Raises UserError for a classifier that config.json names and the arrays lack."""
    config = opened.entries
    stated = config.get("architectures") or []
    stated = stated if isinstance(stated, list) else [stated]
    named = [x for x in stated if "ForImageClassification" in str(x)]
    if not named or match.has("head") or config.get("num_labels") == 0:
        return
    lost = [n for r in match.layout.rules if r.ours.split("/")[0].endswith("head") for n in r.names]
    kind = str(named[0]).partition("For")[0]
    why = f"lacks {', '.join(lost)}: get those files, or state {kind}Model"
    external.refuse({"architectures": named[0]}, why)


def fields(config: Mapping[str, Any], match: Match) -> dict[str, Any]:
    """Fields that config.json states alike for all ViTs; `config` is complete."""
    return {
        "gelu": GELUS[external.word(config, "hidden_act", "gelu", GELUS)],
        "norm_epsilon": external.positive(config, "layer_norm_eps", 0),
        "probabilities": probabilities(config, match),
    }


def probabilities(config: Mapping[str, Any], match: Match) -> str:
    """The function of a classifier's logits, as in transformers. UserError for regression."""
    if not match.has("head"):
        return "softmax"
    usual = "multi" if match.sizes["C"] == 1 else "single"
    kinds = {f"{x}_label_classification": y for x, y in _KINDS.items()}
    kind = external.word(config, "problem_type", f"{usual}_label_classification", (*kinds, _OTHER))
    if kind == _OTHER:
        external.refuse({"problem_type": kind})
    return kinds[kind]


def class_names(config: Mapping[str, Any], match: Match) -> ClassNames:
    """Names of id2label, in the order of the classes."""
    labels = external.section(config, "id2label")
    return external.class_names("id2label", labels, match.sizes.get("C", 0))


def vit_config(model: ModelToWrite, architecture: str, model_type: str) -> dict[str, Any]:
    """Entries of config.json that all of Hugging Face's ViTs have."""
    spec, (height, width) = model.spec, model.preprocess.image_size
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "hidden_act": _HIDDEN_ACTS[spec.gelu],
        "layer_norm_eps": spec.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "torch_dtype": "float32",
        **labels(model),
    }


def labels(model: ModelToWrite) -> dict[str, Any]:
    """Entries of config.json about classes; none for a model without a head."""
    if not model.num_classes:
        return {}
    names = model.class_names or tuple(map(placeholder, range(model.num_classes)))
    word = next(word for word, value in _KINDS.items() if value == model.spec.probabilities)
    if model.num_classes == 1 and word == "single":
        external.lacks("Hugging Face", {"num_classes": 1, "probabilities": "softmax"})
    return {
        **({"problem_type": f"{word}_label_classification"} if word == "multi" else {}),
        "id2label": {str(i): label for i, label in enumerate(names)},
        "label2id": {label: i for i, label in enumerate(names)},
    }


def documents(config: dict[str, Any], model: ModelToWrite) -> Documents:
    """config.json and preprocessor_config.json."""
    processor = huggingface_processors.write(model.preprocess)
    return {"config.json": config, huggingface_processors.FILE: processor}


# --- BiT

_BIT = Layout(
    title="Hugging Face's BiT",
    rules=rules("""
resnet/root/conv     : embedder.convolution
resnet/%/conv[1 2 3] : encoder.stages.%.layers.{}.conv[1 2 3]
resnet/%/projection  : encoder.stages.%.layers.{}.downsample.conv
resnet/%/norm[1 2 3] : encoder.stages.%.layers.{}.norm[1 2 3]
norm                 : norm
head                 : classifier.1
"""),
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
BIT_DEPTHS = [3, 4, 6, 3]  # of transformers' BitConfig by default


def _check_bit(opened: Opened) -> None:
    config = opened.entries
    other = {k: config[k] for k, value in _BIT_CONFIG.items() if config.get(k, value) != value}
    depths, stride = config.get("depths", BIT_DEPTHS), config.get("output_stride", 32)
    if isinstance(depths, list | tuple) and stride != max(32, 2 ** (1 + len(depths))):
        other["output_stride"] = stride
    if other:
        external.refuse(other)


def _widths(units: tuple[int, ...], root_width: int) -> list[int]:
    return [EXPANSION * root_width * 2**stage for stage in range(len(units))]


def _read_bit(opened: Opened) -> ExternalWeights:
    if "model_type" in opened.entries:
        _check_bit(opened)  # arrays of the other kind differ in ways that mislead
    match = best([_BIT], opened.tensors)
    shape = match.resnet
    assert shape
    sizes = {
        "embedding_size": shape.root_width,
        "depths": list(shape.units),
        "hidden_sizes": _widths(shape.units, shape.root_width),
    }
    external.check_sizes(opened, sizes)
    check_head(opened, match)
    _check_bit(opened)
    _, image_size = external.with_image_size(opened, match)
    return external.external_weights(
        match,
        huggingface_processors.read(opened, image_size, any_size=True),
        fields={"probabilities": probabilities(opened.entries, match)},
        class_names=class_names(opened.entries, match),
        assumed=() if opened.preprocessor else ("preprocess",),
    )


def _bit_documents(model: ModelToWrite) -> Documents:
    spec: BiTSpec = model.spec
    config = {
        "architectures": ["BitForImageClassification" if model.num_classes else "BitModel"],
        "model_type": "bit",
        **_BIT_CONFIG,
        "embedding_size": spec.root_width,
        "hidden_sizes": _widths(spec.units, spec.root_width),
        "depths": list(spec.units),
        "output_stride": max(32, spec.map_stride),
        "torch_dtype": "float32",
        **labels(model),
    }
    files = documents(config, model)
    files[huggingface_processors.FILE]["image_processor_type"] = "BitImageProcessor"
    return files


BIT = Format(
    destination="huggingface",
    model_types=("bit",),
    reads=_read_bit,
    holds=lambda spec, _: type(spec) is BiTSpec,
    layout_for=lambda _: _BIT,
    documents=_bit_documents,
    packed=lambda tensors, model: with_prefix("bit.", tensors, model.num_classes),
)
