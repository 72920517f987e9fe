"""The images that a model gets most wrong, with what it looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.draw.figures.heat import blend, relative
from vit_jax.draw.style import palette
from vit_jax.draw.style.look import displayed, styled
from vit_jax.draw.style.tiles import Sheet

ACROSS = 3  # images in a row


@styled
def mistakes(
    photos: np.ndarray,
    heat: np.ndarray | None,
    true: Sequence[str],
    predicted: Sequence[str],
    probabilities: np.ndarray,
    *,
    title: str = "Most wrong",
    what: str = "rollout",
) -> Figure:
    """Each photo, beside it what the model saw; its true class and the predicted one.

    Args:
      photos: [B, H, W, 3], uint8 or from 0 to 1, the worst first.
      heat: [B, R, C], at least 0, scaled by the largest of the image; None for models that have
        none.
      true, predicted: names of classes.
      probabilities: [B, 2], of the true and of the predicted class.
      title: above all.
      what: the heat is.
    """
    wide = 1 if heat is None else 2
    across = min(ACROSS * 2 // wide, len(photos))
    captions = [
        f"is {one} ({p[0]:.0%})\nseen as {other} ({p[1]:.0%})"
        for one, other, p in zip(true, predicted, probabilities, strict=True)
    ]
    note = "with the probability of each class"
    sheet = Sheet(
        math.ceil(len(photos) / across),
        across * wide,
        height_by_width=photos.shape[1] / photos.shape[2],
        title=title,
        note=note if heat is None else f"{note}; {what} beside each image",
        lines=4,
        captions=(captions, wide),
        gaps=range(wide, across * wide, wide),
        bar=heat is not None,
    )
    for k, photo in enumerate(photos):
        row, left = k // across, k % across * wide
        sheet.show(row, left, displayed(photo))
        if heat is not None:
            sheet.show(row, left + 1, blend(photo, relative(heat[k])))
        sheet.caption(row, left, captions[k], over=wide)
    if heat is not None:
        sheet.colour_bar(palette.HEAT, 0, 1, f"{what}, share of the largest in the image")
    return sheet.figure
