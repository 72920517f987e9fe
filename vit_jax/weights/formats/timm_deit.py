"""timm's ViTs with a distillation token (deit_*_distilled_*), in and out."""

from vit_jax import models
from vit_jax.models.vit import ViTSpec
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import timm
from vit_jax.weights.layout import Layout, rule, torch_linear

_LAYOUT = Layout(
    title="timm's distilled DeiT",
    rules=(
        *timm.VIT.rules,
        rule("distillation_token", "dist_token", "1 1 D"),
        *torch_linear("distillation_head", "head_dist", "C D", "C"),
    ),
    needed=("cls", "distillation_token"),
)


def _read(opened: Opened, given: Given) -> ExternalWeights:
    return timm.read(opened, given, (_LAYOUT,))


def _documents(
    spec: ViTSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    config = timm.vit_config(spec, num_classes, about)
    config["architecture"] = "deit_base_distilled_patch16_224"  # whose fields model_args override
    config["pretrained_cfg"]["classifier"] = ["head", "head_dist"]
    if names:
        config["label_names"] = list(names)
    return {"config.json": config}


FORMAT = Format(
    destination="timm",
    reads=_read,
    holds=lambda spec, _: type(spec) is ViTSpec and spec.distillation_token,
    layout_for=lambda _: _LAYOUT,
    documents=_documents,
    hint="Write --to=checkpoint.",
)
