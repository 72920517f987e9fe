"""Hugging Face's ViT and I-JEPA, in and out, and the JSON that its models share.

ViT is ViTForImageClassification, ViTModel and ViTForMaskedImageModeling. ViTModel's pooler is a
dense layer with tanh on the class token, which is called pre-logits here. GELU is exact and the
epsilon of layer norms 1e-12 by default. I-JEPA (IJepaForImageClassification, IJepaModel) is the
same without a class token: its classifier sees the mean of the patches, as a plain ViT with average
pooling does here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.family import ModelSpec
from vit_jax.models.vit import ViTSpec
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.formats import huggingface_processors
from vit_jax.weights.layout import Layout, rule, torch_linear, torch_norm
from vit_jax.weights.match import Match, best, part

HINT = "Write --to=google_npz or checkpoint."
# How names of classifiers start.
OF_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")
# Defaults of transformers' ViTConfig, DeiTConfig and IJepaConfig.
VIT_CONFIG: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "pooler_act": "tanh",
}
# Entries that arrays do not show: their defaults are assumed where there is no config.json.
HIDDEN = ("hidden_act", "layer_norm_eps", "pooler_act")
# Values of `probabilities`, by the word before "_label_classification" in problem_type.
_KINDS, _OTHER = {"single": "softmax", "multi": "sigmoid"}, "regression"
GELUS = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}


def _layout(title: str, layer: str, attention: str, fc1: str, fc2: str, *, ijepa: bool) -> Layout:
    """The table for names in which files differ: `attention` is query, key, value and output."""
    inside = lambda names: " ".join(f"{layer}.{{}}.{name}" for name in names)
    *qkv, out = attention.split()
    # The pooler of I-JEPA takes the first patch: no model here computes that.
    of_vit = (
        rule("cls", "embeddings.cls_token", "1 1 D"),
        *torch_linear("pre_logits", "pooler.dense", "E D", "E"),
    )
    rules = (
        *torch_linear("patches", "embeddings.patch_embeddings.projection", "D 3 P p", "D"),
        rule("positions/embedding", "embeddings.position_embeddings", "1 N D"),
        *torch_norm("norm1", inside(["layernorm_before"])),
        *torch_linear("attention/qkv", inside(qkv), "(H K) D", "(H K)"),
        *torch_linear("attention/out", inside([out]), "D (H K)", "D"),
        *torch_norm("norm2", inside(["layernorm_after"])),
        *torch_linear("mlp/fc1", inside([fc1]), "M D", "M"),
        *torch_linear("mlp/fc2", inside([fc2]), "D M", "D"),
        *torch_norm("norm", "layernorm"),
        *torch_linear("head", "classifier", "C D", "C"),
    )
    return Layout(
        title,
        rules if ijepa else (*rules, *of_vit),
        prefixes=("", "ijepa." if ijepa else "vit."),
        # Further parts of masked image modelling.
        ignored=(r"embeddings\.mask_token", r"decoder\.0\.(weight|bias)"),
        needed=() if ijepa else ("cls",),
    )


_FILES = (
    "encoder.layer",
    "attention.attention.query attention.attention.key attention.attention.value "
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
# transformers 5 still writes the names above into files, but has renamed its modules.
_MODULES = (
    "layers",
    "attention.q_proj attention.k_proj attention.v_proj attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
)
STATE_DICT = "the state_dict() of Hugging Face's {} since transformers 5"
_VIT = _layout("Hugging Face's ViT", *_FILES, ijepa=False)
_IJEPA = _layout("Hugging Face's I-JEPA", *_FILES, ijepa=True)
LAYOUTS = {
    "vit": (_VIT, _layout(STATE_DICT.format("ViT"), *_MODULES, ijepa=False)),
    "ijepa": (_IJEPA, _layout(STATE_DICT.format("I-JEPA"), *_MODULES, ijepa=True)),
}


def _read(opened: Opened, given: Given) -> ExternalWeights:
    kind = (opened.config or {}).get("model_type")
    layouts = LAYOUTS[kind] if kind else LAYOUTS["vit"] + LAYOUTS["ijepa"]
    return read_vit(opened, given, layouts)


def read_vit(opened: Opened, given: Given, layouts: Iterable[Layout]) -> ExternalWeights:
    """`Format.reads` for ViTs and DeiTs of one of these layouts."""
    read, left_out = _without_pooler(opened.tensors)
    match = best(layouts, read)
    config = with_defaults(opened, VIT_CONFIG)
    sizes = {
        "intermediate_size": match.sizes["M"],
        "image_size": config_json.images("image_size", match, given.image_size),
    }
    if match.has("pre_logits"):
        sizes["pooler_output_size"] = match.sizes["E"]
        config_json.word(config, "pooler_act", "tanh", ("tanh",))
    check_sizes(opened, match, VIT_CONFIG, sizes)
    size = config_json.sides("image_size", config["image_size"]) if opened.config else None
    match, pads, image_size = external.with_image_size(opened, match, given, size)
    return external.external_weights(
        external.with_heads(opened, match, given, config["num_attention_heads"]),
        huggingface_processors.read(opened, image_size),
        fields=fields(config, match),
        class_names=class_names(config, match),
        pads_class_position=pads,
        assumed=assumed(opened),
        left_out=left_out,
    )


def _without_pooler(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """(arrays to read, others); no classifier of Hugging Face's ViTs computes a pooler."""
    if not any(name.startswith(OF_HEADS) for name in tensors):
        return tensors, ()
    of_pooler = tuple(name for name in tensors if ".pooler.dense." in f".{name}")
    return {name: x for name, x in tensors.items() if name not in of_pooler}, of_pooler


def assumed(opened: Opened) -> tuple[str, ...]:
    """What neither config.json nor preprocessor_config.json states."""
    of_images = () if opened.preprocessor else ("preprocess",)
    return of_images if opened.config else external.BARE[:2] + of_images


def _layout_for(spec: ViTSpec) -> Layout:
    return _IJEPA if spec.pool == "avg" else _VIT


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    if spec.pool not in ("cls", "avg"):
        raise UserError(
            f"Hugging Face's ViTs have no pool={spec.pool}: write it by vit-jax convert "
            "--to=timm or --to=google_npz."
        )
    if spec.pre_logits and spec.pool == "avg":
        raise UserError(
            "Hugging Face's I-JEPA, its ViT for pool=avg, has no layer between mean and head, this "
            "model has pre-logits: write it by vit-jax convert --to=google_npz."
        )
    if spec.pre_logits and num_classes:
        raise UserError(
            "Hugging Face's ViTForImageClassification has no layer between backbone and head, this "
            "model has pre-logits: leave the head out (--head=drop), or write it by vit-jax "
            "convert --to=google_npz."
        )
    kind, model_type = ("IJepa", "ijepa") if spec.pool == "avg" else ("ViT", "vit")
    suffix = "ForImageClassification" if num_classes else "Model"
    config = vit_config(
        spec, f"{kind}{suffix}", model_type, about.image_size, num_classes, names
    ) | {
        "intermediate_size": spec.mlp_dim,
        "qkv_bias": spec.qkv_bias == "all",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pooler_act": "tanh",
        "pooler_output_size": spec.width,
    }
    return documents(config, about)


def with_prefix(prefix: str, tensors: Tensors, _: Any, num_classes: int) -> Tensors:
    """Names as in a model with a head, the only part without the prefix."""
    if not num_classes:
        return tensors
    return {n if n.startswith(OF_HEADS) else prefix + n: x for n, x in tensors.items()}


def _packed(tensors: Tensors, spec: ViTSpec, num_classes: int) -> Tensors:
    return with_prefix(_layout_for(spec).prefixes[-1], tensors, spec, num_classes)


FORMAT = Format(
    destination="huggingface",
    model_types=tuple(LAYOUTS),
    reads=_read,
    holds=lambda spec, _: type(spec) is ViTSpec and not spec.distillation_token,
    layout_for=_layout_for,
    documents=_documents,
    packed=_packed,
    hint=HINT,
)

# --- JSON that Hugging Face's models share


def with_defaults(opened: Opened, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All values of a config.json; without one, those that arrays do not show."""
    if opened.config is None:
        return {key: x if key in HIDDEN else None for key, x in defaults.items()}
    return {**defaults, **{key: x for key, x in opened.config.items() if x is not None}}


def check_sizes(
    opened: Opened, match: Match, defaults: Mapping[str, Any], sizes: Mapping[str, Any]
) -> None:
    """UserError where config.json, or its defaults, and the arrays have other sizes or parts.

    `sizes` go with those that all ViTs state.
    """
    biases = {"qkv_bias": config_json.flag_of(match.has("qkv_bias"))}
    of_all = config_json.token_sizes(match.sizes) | biases | config_json.num_labels(match)
    config_json.check_sizes(opened, of_all | dict(sizes), defaults)
    check_head(opened, match)


def check_head(opened: Opened, match: Match) -> None:
    """UserError for a classifier that config.json names and the arrays lack."""
    config = opened.config or {}
    stated = config.get("architectures") or []
    stated = stated if isinstance(stated, list) else [stated]
    named = [x for x in stated if "ForImageClassification" in str(x)]
    if not named or match.has("head") or config.get("num_labels") == 0:
        return
    lost = [n for r in match.layout.rules if part(r.ours).endswith("head") for n in r.names]
    kind = str(named[0]).partition("For")[0]
    raise UserError(
        f"{opened.path}: its config.json says {named[0]}, but these arrays are missing: "
        f"{', '.join(lost)}. Get the files that have them; or say that the model is a backbone, by "
        f'"architectures": ["{kind}Model"] in config.json.'
    )


def fields(config: Mapping[str, Any], match: Match) -> dict[str, Any]:
    """Fields that config.json states alike for all ViTs; `config` is complete."""
    return {
        "gelu": GELUS[config_json.word(config, "hidden_act", "gelu", GELUS)],
        "norm_epsilon": config_json.positive(config, "layer_norm_eps", 0),
        "probabilities": probabilities(config, match),
    }


def probabilities(config: Mapping[str, Any], match: Match) -> str:
    """What a classifier's logits become, as in transformers' pipeline. UserError for regression."""
    if not match.has("head"):
        return "softmax"
    usual = "multi" if match.sizes["C"] == 1 else "single"
    kinds = {f"{x}_label_classification": y for x, y in _KINDS.items()}
    kind = config_json.word(
        config, "problem_type", f"{usual}_label_classification", (*kinds, _OTHER)
    )
    if kind == _OTHER:
        raise UserError(
            "config.json: problem_type=regression; a head here gives logits of classes. To read "
            "the model without it, leave the classifier's arrays out and name one without it in "
            '"architectures".'
        )
    return kinds[kind]


def class_names(config: Mapping[str, Any], match: Match) -> ClassNames:
    """Names of id2label, as config_json.read gives them."""
    labels = config_json.section(config, "id2label")
    return config_json.class_names("id2label", labels, match.sizes.get("C", 0))


def vit_config(
    spec: ViTSpec,
    architecture: str,
    model_type: str,
    size: tuple[int, int],
    num_classes: int,
    names: ClassNames,
) -> dict[str, Any]:
    """Entries of config.json that all of Hugging Face's ViTs have, for images of this size."""
    height, width = size
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.num_heads,
        "hidden_act": "gelu" if spec.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": spec.norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch_size,
        "num_channels": 3,
        "torch_dtype": "float32",
        **labels(spec, num_classes, names),
    }


def labels(spec: ModelSpec, num_classes: int, names: ClassNames) -> dict[str, Any]:
    """Entries of config.json about classes; none for a model without a head."""
    if not num_classes:
        return {}
    names = names or tuple(map(config_json.placeholder, range(num_classes)))
    word = next(word for word, value in _KINDS.items() if value == spec.probabilities)
    said = num_classes == 1 or word == "multi"
    return {
        **({"problem_type": f"{word}_label_classification"} if said else {}),
        "id2label": {str(i): label for i, label in enumerate(names)},
        "label2id": {label: i for i, label in enumerate(names)},
    }


def documents(config: dict[str, Any], about: models.Preprocess) -> Documents:
    """config.json and preprocessor_config.json."""
    return {"config.json": config, huggingface_processors.FILE: huggingface_processors.write(about)}
