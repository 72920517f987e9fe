"""Hugging Face's DeiT, in and out: ViTs with a distillation token.

DeiTForImageClassificationWithTeacher, which averages the logits of both heads, and DeiTModel
without its pooler. DeiTForImageClassification has a head over the class token alone, beside a
distillation token, and is refused. A DeiT without that token is a ViT there too.
"""

from vit_jax import models
from vit_jax.models.vit import ViTSpec
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.formats import huggingface
from vit_jax.weights.layout import Layout, rule, torch_linear
from vit_jax.weights.match import part


def _of(vit: Layout, title: str) -> Layout:
    """The table of a ViT with the token and both heads."""
    shared = tuple(r for r in vit.rules if part(r.ours) not in ("head", "pre_logits"))
    return Layout(
        title,
        (
            *shared,
            rule("distillation_token", "embeddings.distillation_token", "1 1 D"),
            *torch_linear("head", "cls_classifier", "C D", "C"),
            *torch_linear("distillation_head", "distillation_classifier", "C D", "C"),
        ),
        prefixes=("", "deit."),
        ignored=vit.ignored,
        needed=("cls", "distillation_token"),
    )


_FILES, _MODULES = huggingface.LAYOUTS["vit"]
_DEIT = _of(_FILES, "Hugging Face's DeiT")
_LAYOUTS = (_DEIT, _of(_MODULES, huggingface.STATE_DICT.format("DeiT")))


def _read(opened: Opened, given: Given) -> ExternalWeights:
    return huggingface.read_vit(opened, given, _LAYOUTS)


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    suffix = "ForImageClassificationWithTeacher" if num_classes else "Model"
    config = huggingface.vit_config(
        spec, f"DeiT{suffix}", "deit", about.image_size, num_classes, names
    ) | {
        "intermediate_size": spec.mlp_dim,
        "qkv_bias": spec.qkv_bias == "all",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return huggingface.documents(config, about)


def _packed(tensors: Tensors, spec: ViTSpec, num_classes: int) -> Tensors:
    return huggingface.with_prefix("deit.", tensors, spec, num_classes)


FORMAT = Format(
    destination="huggingface",
    model_types=("deit",),
    reads=_read,
    holds=lambda spec, _: type(spec) is ViTSpec and spec.distillation_token,
    layout_for=lambda _: _DEIT,
    documents=_documents,
    packed=_packed,
    hint="Write --to=timm or checkpoint.",
    needs_type=True,
)
