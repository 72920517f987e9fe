"""Heat over photos: attention rollout, relevance, and the raw attention of a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from vit_jax.draw.style import palette
from vit_jax.draw.style.look import displayed, styled
from vit_jax.draw.style.tiles import Sheet

STRENGTH = 0.68  # of the heat over the photo
PALE = 0.75  # of the photo's brightness below it
COLUMNS = 6  # tiles in a row


def blend(photo: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Heat [R, C] from 0 to 1 over a photo [H, W, 3], which turns gray: uint8 [H, W, 3].

    Heat is interpolated linearly between the patches' centres. NaN is no heat.
    """
    photo = displayed(photo)
    height, width = photo.shape[:2]
    raw = Image.fromarray(np.nan_to_num(np.asarray(heat, np.float32)))
    large = np.clip(np.asarray(raw.resize((width, height), Image.Resampling.BILINEAR)), 0, 1)
    colours = matplotlib.colormaps[palette.HEAT](large)[..., :3]
    gray = photo @ np.array([0.299, 0.587, 0.114]) / 255 * PALE
    mixed = STRENGTH * colours + (1 - STRENGTH) * gray[..., None]
    return displayed(mixed / (STRENGTH + (1 - STRENGTH) * PALE))


@styled
def overlays(
    photos: np.ndarray,
    maps: Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    title: str = "What the model looks at",
    unit: str = "share of the largest in the image",
) -> Figure:
    """Each photo, and beside it each kind of heat over it.

    Args:
      photos: [B, H, W, 3], uint8 or from 0 to 1.
      maps: heat [B, R, C] by what it is ("rollout"), at least 0; each is scaled by its largest
        number in the image.
      names: B captions, of two lines at most.
      title: above all.
      unit: of the colour bar.
    """
    wide = 1 + len(maps)
    across = max(1, min(COLUMNS // wide, len(photos)))
    sheet = Sheet(
        math.ceil(len(photos) / across),
        across * wide,
        height_by_width=photos.shape[1] / photos.shape[2],
        title=title,
        lines=2,
        captions=(names, wide),
        headings=True,
        gaps=[k * wide for k in range(1, across)],
        bar=True,
    )
    for k in range(across):
        for j, heading in enumerate(("photo", *maps)):
            sheet.heading(k * wide + j, heading)
    for k, photo in enumerate(photos):
        row, left = k // across, k % across * wide
        sheet.show(row, left, displayed(photo))
        for j, heat in enumerate(maps.values(), start=1):
            sheet.show(row, left + j, blend(photo, relative(heat[k])))
        sheet.caption(row, left, names[k], over=wide)
    sheet.colour_bar(palette.HEAT, 0, 1, unit)
    return sheet.figure


@styled
def attention(
    photo: np.ndarray,
    weights: np.ndarray,
    *,
    query: tuple[int, int] | None,
    layer: int,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Attention of each head of a layer from one query, over a photo [H, W, 3].

    Args:
      photo: uint8 or from 0 to 1.
      weights: [heads, R, C]: what the query gives each patch.
      query: (row, column) of its patch, from 0, marked in the photo; None: the class token.
      layer: its number, from 1.
      heads: their numbers, from 1; all if None.
    """
    number, rows, columns = weights.shape
    across = min(COLUMNS, 1 + number)
    per_row = max(across - 1, 1)
    of_query = "the class token" if query is None else f"row {query[0] + 1}, column {query[1] + 1}"
    sheet = Sheet(
        math.ceil(number / per_row),
        across,
        height_by_width=photo.shape[0] / photo.shape[1],
        title=f"Attention of layer {layer}",
        note=f"query: {of_query}; below each its head and the largest weight of a patch",
        lines=2,
        bar=True,
        gaps=(1,),
    )
    grid = (rows, columns)
    where = sheet.show(0, 0, displayed(photo))
    mark(where, query, photo.shape, grid)
    sheet.caption(0, 0, "photo, query" if query else "photo")
    for k, heat in enumerate(weights):
        place = k // per_row, 1 + k % per_row
        axes = sheet.show(*place, blend(photo, relative(heat)))
        mark(axes, query, photo.shape, grid)
        head = k + 1 if heads is None else heads[k]
        sheet.caption(*place, f"head {head}\n{np.max(heat):.1%}")
    sheet.colour_bar(palette.HEAT, 0, 1, "attention, share of the largest in the head")
    return sheet.figure


def relative(heat: np.ndarray) -> np.ndarray:
    """Heat divided by its largest number; zeros if there is none above 0."""
    x = np.nan_to_num(np.asarray(heat, np.float64))
    return np.maximum(x, 0) / max(float(x.max()), np.finfo(np.float64).tiny)


def mark(
    axes: Axes, patch: tuple[int, int] | None, shape: tuple[int, ...], grid: tuple[int, int]
) -> None:
    """Frames a patch (row, column) of the grid over a photo of that shape."""
    if patch is None:
        return
    high, wide = shape[0] / grid[0], shape[1] / grid[1]
    corner = (patch[1] * wide - 0.5, patch[0] * high - 0.5)
    for colour, line in (("white", 2.4), ("black", 1.0)):
        axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=colour, lw=line))
