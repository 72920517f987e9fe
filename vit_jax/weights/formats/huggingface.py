"""Hugging Face's ViT and I-JEPA, in and out, and the JSON that its models share.

ViT is ViTForImageClassification, ViTModel and ViTForMaskedImageModeling. ViTModel's pooler is a
dense layer with tanh on the class token, which is called pre-logits here. GELU is exact and the
epsilon of layer norms 1e-12 by default. I-JEPA (IJepaForImageClassification, IJepaModel) is the
same without a class token: its classifier sees the mean of the patches, as a plain ViT with average
pooling does here.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.models.vit_spec import ViTSpec
from vit_jax.weights import config_json, external
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.layout import Layout, rule, torch_linear, torch_norm
from vit_jax.weights.match import Match, best

HINT = "Write --to=google_npz or checkpoint."
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
    config = opened.config or {}
    kind = config.get("model_type")
    match = best(LAYOUTS[kind] if kind else LAYOUTS["vit"] + LAYOUTS["ijepa"], opened.tensors)
    sizes = config_json.token_sizes(match.sizes) | {
        "intermediate_size": match.sizes["M"],
        "image_size": config_json.images("image_size", match, given.image_size),
        "qkv_bias": config_json.flag_of(match.has("qkv_bias")),
    }
    if match.has("pre_logits"):
        sizes["pooler_output_size"] = match.sizes["E"]
    config_json.check_sizes(opened, sizes | config_json.num_labels(match))
    size = config_json.sides("image_size", config.get("image_size", 224)) if config else None
    match, pads, image_size = external.with_image_size(opened, match, given, size)
    check_qkv_bias(config, match)
    if config.get("pooler_act", "tanh") != "tanh":
        raise UserError(
            f"config.json: pooler_act={config['pooler_act']!r}; only tanh is supported."
        )
    return external.external_weights(
        external.with_heads(opened, match, given, 12 if config else None),
        preprocess(opened.preprocessor or {}, image_size),
        fields={
            "gelu": gelu(config),
            "norm_epsilon": config_json.positive(config, "layer_norm_eps", 1e-12),
        },
        class_names=class_names(config, match),
        pads_class_position=pads,
        assumed=assumed(opened),
    )


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
            f"Hugging Face's ViTs have no pool={spec.pool}: write it by python -m vit_jax.convert "
            "--to=timm or --to=google_npz."
        )
    if spec.pre_logits and spec.pool == "avg":
        raise UserError(
            "Hugging Face's I-JEPA, its ViT for pool=avg, has no layer between mean and head, this "
            "model has pre-logits: write it by python -m vit_jax.convert --to=google_npz."
        )
    if spec.pre_logits and num_classes:
        raise UserError(
            "Hugging Face's ViTForImageClassification has no layer between backbone and head, this "
            "model has pre-logits: leave the head out (--head=drop), or write it by python -m "
            "vit_jax.convert --to=google_npz."
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
    of_heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
    return {n if n.startswith(of_heads) else prefix + n: x for n, x in tensors.items()}


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


def check_qkv_bias(config: Mapping[str, Any], match: Match) -> None:
    """UserError for biases that a config.json implies and the arrays lack."""
    if config and not match.has("qkv_bias") and config.get("qkv_bias") is None:
        raise UserError(
            "The arrays have no biases of query, key and value, but config.json does not say so: "
            "if the model has none, put qkv_bias=false there."
        )


def gelu(config: Mapping[str, Any]) -> str:
    """The form of GELU; exact by default."""
    return GELUS[config_json.word(config, "hidden_act", "gelu", GELUS)]


def class_names(config: Mapping[str, Any], match: Match) -> ClassNames:
    """Names of id2label, as config_json.read gives them."""
    labels = config_json.section(config, "id2label")
    return config_json.class_names("id2label", labels, match.sizes.get("C", 0))


def preprocess(document: Mapping[str, Any], image_size: tuple[int, int]) -> models.Preprocess:
    """Preparation by preprocessor_config.json. UserError for steps that prediction lacks."""
    if not document.get("do_rescale", True):
        raise UserError("preprocessor_config.json: do_rescale=false; pixels have to become [0, 1].")
    factor = config_json.positive(document, "rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-3:
        raise UserError(
            f"preprocessor_config.json: rescale_factor={factor}; pixels have to become [0, 1], "
            "which is 1/255."
        )
    size: Any = document.get("size") or list(image_size)
    resize: tuple[int, int] | int | None = None
    if document.get("do_resize", True):
        shortest = isinstance(size, Mapping) and "shortest_edge" in size
        resize = (
            config_json.side("shortest_edge", size["shortest_edge"])
            if shortest
            else config_json.sides("size", size)
        )
    crop = None
    if document.get("do_center_crop", False):
        crop = config_json.sides("crop_size", document.get("crop_size") or size)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    if document.get("do_normalize", True):
        half = (0.5, 0.5, 0.5)
        mean, std = (config_json.channels(document, f"image_{x}", half) for x in ("mean", "std"))
    return models.Preprocess(
        image_size,
        resize,
        crop,
        mean,
        std,
        _interpolation(document.get("resample")),
        longer="down" if isinstance(resize, int) else "nearest",
    )


def preprocess_of_any_size(document: Mapping[str, Any]) -> models.Preprocess:
    """Preparation for a model that takes any size, at the size that images end up with.

    Args:
      document: complete with its processor's defaults.

    Raises:
      UserError: `document` does not determine that size; or as `preprocess`.
    """
    key = "crop_size" if document.get("do_center_crop") else "size"
    sides = document.get(key)
    if not isinstance(sides, Mapping) or {"height", "width"} <= sides.keys():
        return preprocess(document, config_json.sides(key, sides))
    raise UserError(
        f"preprocessor_config.json: {key}={sides!r} does not say how large images become: give "
        "height and width, or a crop."
    )


def _interpolation(number: Any) -> str:
    """The name of Pillow's number; bilinear if absent, as in ViT's processor."""
    if number is None:
        return "bilinear"
    if type(number) is not int or not 0 <= number < len(models.INTERPOLATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(models.INTERPOLATIONS))
        raise UserError(f"preprocessor_config.json: resample={number!r}. There are {known}.")
    return models.INTERPOLATIONS[number]


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
        **labels(num_classes, names),
    }


def labels(num_classes: int, names: ClassNames) -> dict[str, dict[str, Any]]:
    """Entries of config.json about classes; none for a model without a head."""
    if not num_classes:
        return {}
    names = names or tuple(map(config_json.placeholder, range(num_classes)))
    return {
        "id2label": {str(i): label for i, label in enumerate(names)},
        "label2id": {label: i for i, label in enumerate(names)},
    }


def documents(config: dict[str, Any], about: models.Preprocess) -> Documents:
    """config.json and preprocessor_config.json."""
    return {"config.json": config, "preprocessor_config.json": processor(about)}


def processor(about: models.Preprocess) -> dict[str, Any]:
    """preprocessor_config.json. UserError for steps that transformers' processors lack."""
    if about.fit != "stretch":
        raise UserError(
            "Hugging Face's processors resize to the shorter side or to a size, and do not pad; "
            f"this model's images are resized in proportion, fit={about.fit!r}: write --to=timm."
        )
    document: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": about.resize is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(about.mean),
        "image_std": list(about.std),
        "resample": models.INTERPOLATIONS.index(about.interpolation),
        "do_center_crop": about.crop is not None,
    }
    if isinstance(about.resize, int):
        document["size"] = {"shortest_edge": about.resize}
    else:
        document["size"] = _sides(about.resize or about.image_size)
    if about.crop:
        document["crop_size"] = _sides(about.crop)
    return document


def _sides(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
