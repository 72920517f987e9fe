"""Mean attention distance by depth (arXiv 2010.11929, figures 7 right and 11)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.style import look, palette


@look.styled
def distance(
    distances: np.ndarray,
    *,
    images: int | None = None,
    uniform: float | None = None,
    title: str = "Mean attention distance",
) -> Figure:
    """Distances [L, H] in pixels of the input: a dot for each head, a line through layers' means.

    Args:
      distances: mean attention distance of each head of each layer.
      images: over how many images it is the mean.
      uniform: the distance if all patches got the same attention, drawn as a line.
    """
    depth, heads = distances.shape
    figure = look.blank(5.4, 3.7)
    figure.suptitle(title, x=0.02, ha="left")
    axes = figure.add_subplot()
    layers = np.arange(1, depth + 1)
    axes.plot(layers, distances.mean(axis=1), color=palette.MUTED, lw=1.2, label="mean of heads")
    # Sorted and side by side within the layer, so that equal ones do not hide each other.
    aside = np.linspace(-0.18, 0.18, heads) if heads > 1 else np.zeros(1)
    axes.scatter(
        (layers[:, None] + aside).ravel(),
        np.sort(distances, axis=1).ravel(),
        s=16 if depth * heads <= 400 else 9,
        color=palette.BLUE,
        alpha=0.75,
        linewidth=0,
        label="a head",
        zorder=3,
    )
    if uniform is not None:
        label = "if attention were uniform"
        axes.axhline(uniform, label=label, color=palette.VERMILION, lw=1.2, dashes=(6, 3))
    axes.set_ylim(0, 1.06 * max(float(np.nanmax(distances)), uniform or 0, 1))
    look.layer_ticks(axes, depth)
    axes.set_ylabel("mean attention distance (pixels)")
    of_images = "" if images is None else f", {images:,} image{'s' if images > 1 else ''}"
    note = f"{depth} layers of {heads} heads{of_images}"
    axes.set_title(note, loc="left", size=look.SMALL, color=palette.MUTED)
    figure.legend(loc="outside lower center", ncols=3)
    return figure
