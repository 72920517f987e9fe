"""The fields of an Axial-ViT, their valid combinations, and the names that imply them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from vit_jax.core import errors
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models import vit_spec
from vit_jax.models.family import Family
from vit_jax.models.vit_spec import SIZES, ViTSpec
from vit_jax.nn.kernels import choice

PREFIX = "Axial-"  # before the name of a ViT
PUBLISHED = ("Axial-ViT-B/16", "Axial-ViT-B/32")  # figure 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialViTSpec(ViTSpec):
    """The fields of a ViT; each of its `depth` blocks is two here, along rows and along columns.

    The tokens are a grid, so there is no class token: the mean over the patches (`pool=avg`, which
    names imply) or attention pooling is what the head sees.
    """

    def check(self) -> None:
        """Raises UserError for fields that cannot be combined."""
        if self.has_class_token or self.registers:
            what = f"pool={self.pool}" if self.has_class_token else f"registers={self.registers}"
            raise errors.UserError(
                f"model.{what} does not go with an Axial-ViT, whose tokens are the patches, a grid "
                "without further ones: set pool=avg or pool=map, and registers=0."
            )
        if self.position_embedding == "relative":
            raise errors.UserError(
                "model.position_embedding=relative is of places in one sequence, which an "
                "Axial-ViT does not attend over: take another, such as learned_1d or rotary_2d."
            )
        if self.attention not in (choice.AUTO, choice.XLA):
            raise errors.UserError(
                f"model.attention={self.attention} is for more tokens than a row or a column of an "
                "Axial-ViT has: set model.attention=auto."
            )
        super().check()

    def attended(self, layout: TokenLayout) -> tuple[int, ...]:
        """For each attention of a block: the number of tokens that each token takes from."""
        rows, columns = layout.grid
        return columns, rows


def named(name: str) -> dict[str, Any] | None:
    """The fields for "Axial-ViT-B/16"; None for a name of another form."""
    plain = name.removeprefix(PREFIX)
    fields = None if plain == name else vit_spec.named(plain)
    is_plain = fields is not None and fields.keys() <= {"patch_size", *SIZES["B"]}
    return {**fields, "pool": "avg"} if fields and is_plain else None


def module() -> Callable[..., Any]:
    """The module of these fields."""
    from vit_jax.models.axial.vit import AxialViT

    return AxialViT


FAMILY = Family(
    kind="An Axial-ViT",
    form="Axial-ViT-<size>/<patch>",
    published=PUBLISHED,
    spec=AxialViTSpec,
    named=named,
    module=module,
)
