"""Methods of pre-training, one file each, and their table: config.method.kind."""

from vit_jax.core.schema import entry_points

SUPERVISED = "supervised"


METHODS = entry_points.Parts[type](
    "methods",
    {
        SUPERVISED: "vit_jax.learning.losses:Supervised",
        "depth": "vit_jax.learning.methods.depth:Depth",
        "dino": "vit_jax.learning.methods.dino:DINO",
        "distillation": "vit_jax.learning.methods.distillation:Distillation",
        "feature_distillation": (
            "vit_jax.learning.methods.feature_distillation:FeatureDistillation"
        ),
        "lejepa": "vit_jax.learning.methods.lejepa:LeJEPA",
        "mae": "vit_jax.learning.methods.mae:MAE",
        "masked_patch": "vit_jax.learning.methods.masked_patch:MaskedPatch",
        "segmentation": "vit_jax.learning.methods.segmentation:Segmentation",
    },
)


def find(kind: str) -> type:
    """The dataclass of a method's fields. UserError for one that is not there."""
    return METHODS.get_named("method.kind", kind)
