"""The models that methods over patches work with."""

from vit_jax import models
from vit_jax.core.errors import UserError

VIT = "A ViT"


def check(method: str, name: str) -> None:
    """UserError for a model that is not a plain ViT."""
    kind = models.kind(name)
    if kind != VIT:
        raise UserError(
            f"method.kind={method} hides patches from a ViT, but model.name={name} is "
            f"{kind[0].lower()}{kind[1:]}, which sees through them: give a ViT, such as "
            "--config.model.name=ViT-S/16."
        )
