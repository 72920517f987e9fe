"""Pictures of the weights alone: filters of the first layer, position embeddings."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from vit_jax.core import arrays, pytrees
from vit_jax.core.screen import format_percent
from vit_jax.draw import style, tiles
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.tiles import Sheet
from vit_jax.probes import first_layer

# Positions that act inside attention.
INSIDE = (
    *("relative", "relative_2d", "relative_mlp"),
    *("rotary_2d", "rotary_axial", "rotary_mixed"),
)


def findings(model: Any) -> Findings:
    """Pictures and numbers of a model's weights."""
    params = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    kernels = {name: x for name, x in params.items() if name in first_layer.KERNELS}
    first = first_layer.first_layer(jax.device_get(kernels))
    filters = first_layer.components(first.kernel)
    numbers = {"filters_explained": float(filters.explained.sum())}
    note = (
        f"The first {len(filters.pictures)} principal components of the {first.what}, as in figure "
        "7 of the ViT paper. After training they are smooth waves and colours; random ones are "
        "noise."
    )
    draw = functools.partial(draw_filters, filters.pictures, filters.explained, what=first.what)
    pictures = [Picture("filters", "Filters", note, draw)]
    table, text = position_table(model), ""
    kind = getattr(model.spec, "position_embedding", None)
    if table is None and kind in INSIDE:
        text = f"Its positions ({kind}) act inside attention: there is no table to show."
    elif table is None:
        text = f"This {type(model).__name__} has no position embeddings."
    else:
        share = first_layer.grid_share(table)
        chance = first_layer.chance(table.shape[:2])
        numbers["positions_row_plus_column"] = share
        line = (
            f"{format_percent(share, 1)} of their variance is row plus column; of random ones "
            f"{format_percent(chance, 1)}"
        )
        note = (
            "Each small grid belongs to the patch at its place, and shows the similarity of that "
            "patch's embedding with those of all patches."
        )
        draw = functools.partial(draw_positions, first_layer.similarity(table), note=line)
        pictures.append(Picture("positions", "Position embeddings", note, draw))
    return Findings(Section("The weights", pictures, text), numbers)


def position_table(model: Any) -> np.ndarray | None:
    """Embeddings that are added to the patches, of the first block if each has some.

    Returns:
      [rows, columns, D], or None for a model without them.
    """
    spec = model.spec
    kind, beside = (getattr(spec, f, None) for f in ("position_embedding", "absolute_positions"))
    if kind in (None, "none", *INSIDE) and not beside:
        return None
    layout = spec.token_layout(model.preprocess.image_size)
    nothing = jnp.zeros((1, layout.num_tokens, spec.width))
    if spec.position_place == "layers":
        graph, state = nnx.split(model.blocks.block.attention_blocks[0].positions)
        added = nnx.merge(graph, jax.tree.map(lambda x: x[0], state))(nothing)
    else:
        added = model.positions(nothing)
    patches = np.asarray(added[0, layout.num_tokens - layout.num_patches :], np.float32)
    return patches.reshape(*layout.grid, -1)


FILTER_COLUMNS, NARROW_COLUMNS = 7, 5
TINY = 1e-30  # a filter of zeros is gray


@style.styled
def draw_filters(
    pictures: np.ndarray, explained: np.ndarray, *, what: str = "patch projection"
) -> Figure:
    """Draws principal components [K, P, P, 3] of a layer, and their shares of variance [K].

    Gray is 0; each is scaled by its largest number.
    """
    number, height, width, _ = pictures.shape
    columns = min(NARROW_COLUMNS if style.is_narrow() else FILTER_COLUMNS, number)
    sheet = Sheet(
        math.ceil(number / columns),
        columns,
        height_by_width=height / width,
        title=f"Principal components of the {what}",
        note=f"{number} components of {height} × {width} px, "
        f"{format_percent(float(np.sum(explained)), 1)} of the variance; below each its share",
        lines=1,
        most_in=0.9,
    )
    for k, picture in enumerate(pictures):
        row, column = divmod(k, columns)
        size = max(float(np.abs(picture).max()), TINY)
        shown = picture[..., arrays.triple(picture.shape[-1])]
        sheet.show(row, column, 0.5 + shown / (2 * size))
        sheet.caption(row, column, format_percent(float(explained[k]), 1))
    return sheet.figure


MOST_GRIDS, NARROW_GRIDS = 16, 8  # grids in a row: with more, each is too small to be read
GRIDS_IN = 5.0  # width of all
LABELS_IN = 0.4  # space for labels on the left, and below


@style.styled
def draw_positions(similarity: np.ndarray, *, note: str = "") -> Figure:
    """Draws cosines [R, C, R, C]: a grid for each of at most 16 rows and columns of positions."""
    rows, columns = similarity.shape[:2]
    shown = [_spread(n) for n in (rows, columns)]
    gap = max(1, round(max(rows, columns) / 14))
    mosaic = np.full(
        (len(shown[0]) * (rows + gap) - gap, len(shown[1]) * (columns + gap) - gap), np.nan
    )
    for i, row in enumerate(shown[0]):
        for j, column in enumerate(shown[1]):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = similarity[row, column]
    sheet = Sheet(
        1,
        1,
        height_by_width=mosaic.shape[0] / mosaic.shape[1],
        title="Similarity of position embeddings",
        note=note,
        most_in=GRIDS_IN,
        left=LABELS_IN,
        below=LABELS_IN,
        bar=True,
    )
    axes = sheet.axes(0, 0)
    axes.imshow(mosaic, aspect="auto", cmap=style.SIGNED, vmin=-1, vmax=1)
    axes.tick_params(length=0)
    axes.set_yticks(*_grid_ticks(shown[0], rows, gap), size=style.SMALL)
    axes.set_xticks(*_grid_ticks(shown[1], columns, gap), size=style.SMALL)
    for set_label, what, room in (
        (axes.set_xlabel, "column", sheet.tile),
        (axes.set_ylabel, "row", sheet.tile_height),
    ):
        label = f"{what} of the input patch"
        set_label(label if tiles.width_in(label, style.FONT) <= room else what)
    sheet.colour_bar(style.SIGNED, -1, 1, "cosine similarity")
    return sheet.figure


def _spread(number: int) -> list[int]:
    """A few indices below `number`, with the first and the last."""
    most = NARROW_GRIDS if style.is_narrow() else MOST_GRIDS
    return sorted({int(k) for k in np.linspace(0, number - 1, min(number, most)).round()})


def _grid_ticks(shown: list[int], size: int, gap: int) -> tuple[list[float], list[str]]:
    places = [k * (size + gap) + (size - 1) / 2 for k in range(len(shown))]
    return places, [str(k + 1) for k in shown]
