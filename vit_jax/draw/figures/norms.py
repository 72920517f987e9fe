"""Norms of tokens, with the patches that stand out (arXiv 2309.16588, figures 3 and 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.draw.style import look, palette
from vit_jax.draw.style.look import displayed
from vit_jax.draw.style.tiles import Sheet

PAIRS = 3  # a photo and its norms, in a row


@look.styled
def norms(
    photos: np.ndarray,
    of_patches: np.ndarray,
    outliers: np.ndarray,
    names: Sequence[str],
    *,
    title: str = "Norms of patch tokens",
) -> Figure:
    """Each photo and the norms of its patches; those that stand out are framed.

    Args:
      photos: [B, H, W, 3], uint8 or from 0 to 1.
      of_patches: [B, R, C], of one layer; the colours are the same in all images.
      outliers: [B, R, C] bool.
      names: B captions, of two lines at most.
      title: above all; the layer belongs there.
    """
    across = min(PAIRS, len(photos))
    shown = [
        f"{name}\n{n} of {each.size} stand out" if n else name
        for name, each, n in zip(names, outliers, outliers.sum(axis=(1, 2)), strict=True)
    ]
    sheet = Sheet(
        math.ceil(len(photos) / across),
        2 * across,
        height_by_width=photos.shape[1] / photos.shape[2],
        title=title,
        note=f"{outliers.mean():.1%} of {outliers.size:,} patches stand out, framed in blue",
        lines=2,
        captions=(shown, 2),
        gaps=range(2, 2 * across, 2),
        bar=True,
    )
    # Outliers are many times as long as the others, which would all have one colour.
    low, high = (float(f(of_patches)) for f in (np.min, np.max))
    high = high or 1.0  # of weights that are all 0
    low, high = max(low, 1e-3 * high), max(high, 1.01 * low)
    for k, photo in enumerate(photos):
        row, left = k // across, k % across * 2
        sheet.show(row, left, displayed(photo))
        axes = sheet.show(row, left + 1, of_patches[k], cmap=palette.HEAT, norm=LogNorm(low, high))
        for i, j in np.argwhere(outliers[k]):
            corner = (j - 0.5, i - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, color=palette.SKY, lw=1.4))
        sheet.caption(row, left, shown[k], over=2)
    sheet.colour_bar(palette.HEAT, low, high, "norm of the token (no unit), logarithmic", log=True)
    return sheet.figure


@look.styled
def norms_by_layer(
    of_patches: np.ndarray,
    *,
    others: Mapping[str, np.ndarray] | None = None,
    threshold: float | None = None,
    title: str = "Norms of tokens by layer",
) -> Figure:
    """The spread of patches' norms over layers, and the norms of tokens that are no patches.

    Args:
      of_patches: [L, M], of all patches of all images.
      others: mean norms [L] by name: "class token", "register 1".
      threshold: above which a patch of the last layer stands out, drawn as a line.
      title: above all.
    """
    depth = len(of_patches)
    figure = look.blank(5.8, 3.7)
    figure.suptitle(title, x=0.02, ha="left")
    axes = figure.add_subplot()
    layers = np.arange(1, depth + 1)
    low, quarter, middle, three, most = np.percentile(of_patches, [1, 25, 50, 75, 99], axis=1)
    axes.fill_between(layers, low, most, color=palette.SKY, alpha=0.3, lw=0, label="98 % of them")
    axes.fill_between(layers, quarter, three, color=palette.SKY, alpha=0.6, lw=0, label="half")
    axes.plot(layers, middle, color=palette.BLUE, label="patches, median")
    largest = of_patches.max(axis=1)
    axes.plot(layers, largest, ".", color=palette.BLUE, ms=5, label="largest patch")
    for k, (name, values) in enumerate((others or {}).items()):
        colour, marker = palette.series(k + 1)
        axes.plot(layers, values, color=colour, marker=marker, ms=4, lw=1.2, label=name)
    if threshold is not None:
        label = "stands out in the last layer"
        axes.axhline(threshold, color=palette.MUTED, lw=1.2, dashes=(6, 3), label=label)
    axes.set_yscale("log")
    look.plain_log_ticks(axes.yaxis)
    look.layer_ticks(axes, depth)
    axes.set_ylabel("norm of the token (no unit)")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
