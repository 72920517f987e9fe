"""Axial-ViT: a ViT whose blocks attend along rows, then along columns (arXiv 2010.11929, D.6)."""

from typing import Any

from flax import nnx

from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.axial.vit_spec import AxialViTSpec
from vit_jax.models.vit import ViT
from vit_jax.nn.axial.lines import AxialBlock


class AxialViT(ViT):
    """A ViT of axial blocks: twice as many attentions, each along one axis, and as many MLPs."""

    spec: AxialViTSpec

    def _make_block(self, layout: TokenLayout, **arguments: Any) -> nnx.Module:
        """A block for tokens of this layout."""
        return AxialBlock(self.spec, grid=layout.grid, **arguments)
