"""The models that methods over patches work with."""

from typing import Any

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


def check_pooling(method: str, spec: Any) -> None:
    """UserError for weights behind the tokens, which a loss on these leaves as they are."""
    for field, value, instead in (("pool", "map", "avg"), ("pre_logits", True, False)):
        if getattr(spec, field) == value:
            raise UserError(
                f"method.kind={method} learns from tokens alone: the weights of model.{field}="
                f"{value}, which come after them, would stay random. Set model.{field}={instead}."
            )
