"""What the weights alone show: filters of the first layer, position embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.core import pytrees
from vit_jax.draw.figures.filters import filters as draw_filters
from vit_jax.draw.figures.positions import positions as draw_positions
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.style import look
from vit_jax.probes import filters, positions

NUMBERS = ("filters_explained", "positions_row_plus_column")
INSIDE = ("relative", "rotary_2d")  # positions that act inside attention


def findings(model: Any) -> Findings:
    """The pictures and numbers of a model's weights."""
    pictures: list[Picture] = []
    numbers: dict[str, float] = {}
    said = ""
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    first = filters.first_layer({name: jax.device_get(params[name]) for name in _filters(params)})
    found = filters.components(first.kernel)
    pictures.append(
        Picture(
            "filters",
            "Filters",
            f"The first {len(found.pictures)} principal components of the {first.what}, as in "
            "figure 7 of the ViT paper. After training they are smooth waves and colours; random "
            "ones are noise.",
            look.png(draw_filters(found.pictures, found.explained, what=first.what)),
        )
    )
    numbers["filters_explained"] = float(found.explained.sum())
    table = position_table(model)
    if table is None:
        said = _without_positions(model)
    else:
        share = positions.grid_share(table)
        chance = positions.chance(table.shape[:2])
        numbers["positions_row_plus_column"] = share
        note = f"{share:.0%} of their variance is row plus column; of random ones {chance:.0%}"
        drawn = draw_positions(positions.similarity(table), note=note)
        pictures.append(
            Picture(
                "positions",
                "Position embeddings",
                "Each small grid belongs to the patch at its place, and shows the similarity of "
                "that patch's embedding with those of all patches.",
                look.png(drawn),
            )
        )
    return Findings(Section("The weights", pictures, said), numbers)


def _filters(params: dict[str, Any]) -> list[str]:
    return [name for name in params if name in filters.KERNELS]


def position_table(model: Any) -> np.ndarray | None:
    """What is added to the patches for their places, [rows, columns, D]; None if nothing is.

    Where each block has embeddings of its own, those of the first block.
    """
    spec = model.spec
    if not hasattr(spec, "position_embedding") or spec.position_embedding in ("none", *INSIDE):
        return None
    layout = spec.token_layout(model.preprocess.image_size)
    own = model.blocks.block.each[0].positions
    nothing = jnp.zeros((1, layout.num_tokens, spec.width))
    if own is None:
        added = model.positions(nothing)
    else:
        graph, state = nnx.split(own)
        added = nnx.merge(graph, jax.tree.map(lambda x: x[0], state))(nothing)
    patches = np.asarray(added[0, layout.num_tokens - layout.num_patches :], np.float32)
    return patches.reshape(*layout.grid, -1)


def _without_positions(model: Any) -> str:
    if not hasattr(model.spec, "position_embedding"):
        return f"A {type(model).__name__} has no position embeddings."
    kind = model.spec.position_embedding
    if kind in INSIDE:
        return f"Its positions ({kind}) act inside attention: there is no table to show."
    return "It has no position embeddings."
