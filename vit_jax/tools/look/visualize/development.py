"""Development of what a model has learnt over the checkpoints of a run."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from etils import epath
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.draw import style, tiles
from vit_jax.draw.attention_pictures import draw_overlays
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.weight_pictures import draw_positions, position_table
from vit_jax.models import observe
from vit_jax.probes import first_layer
from vit_jax.store import workdir as workdirs
from vit_jax.tools.look.visualize.photos import Photos

TITLE = "Over training"
ALL = "all"
# Of the curves: a number's name -> what its axis says, and its unit.
UNITS = {
    "positions_row_plus_column": ("positions: row plus column", "share of variance"),
    "mean_distance_px": ("mean attention distance", "pixels"),
}


def parse_steps(workdir: str, requested: str) -> list[int]:
    """The steps of a work directory that are asked for: "all", or "1000,2000".

    UserError if it is not a work directory, or lacks one of these checkpoints.
    """
    available = sorted(workdirs.steps(checkpoints(workdir)))
    if not available:
        raise UserError(f"--steps={requested}: {workdir} is not a work directory with checkpoints.")
    if requested == ALL:
        return available
    words = requested.split(",")
    missing = [word for word in words if not word.isdecimal() or int(word) not in available]
    if missing:
        raise UserError(
            f"--steps={requested}: no checkpoint of step {missing[0]!r} in {workdir}; there are "
            f"{', '.join(map(str, available))}."
        )
    return sorted({int(word) for word in words})


def check(model: Any) -> None:
    """Raises UserError for a model in which nothing can be followed."""
    if not observe.has_attention(model):
        raise UserError(
            f"--steps follows positions and attention, and a {type(model).__name__} has neither. "
            "Leave it out."
        )


def checkpoints(workdir: str) -> epath.Path:
    """The folder of the steps' folders."""
    return epath.Path(workdir).expanduser() / "checkpoints"


def findings(
    steps: Sequence[int],
    load: Callable[[int], Any],
    shown: Photos,
    progress: Callable[[int, int], None],
) -> Findings:
    """Curves and movies over steps.

    Args:
      load: a step -> its model, evaluation mode.
      shown: a few photos.
    """
    frames: dict[str, list[np.ndarray]] = {"positions": [], "rollout": []}
    curves: dict[str, list[Any]] = {name: [] for name in UNITS}
    for done, step in enumerate(steps):
        model = load(step)
        table = position_table(model)
        if table is not None:
            curves["positions_row_plus_column"].append(first_layer.grid_share(table))
            drawn = draw_positions(first_layer.similarity(table), note=f"step {step:,}")
            frames["positions"].append(style.pixels(drawn, dpi=75))
        if observe.has_attention(model):
            reducers = (observe.Rollout(), observe.Distances())
            rollout, distances = observe.look(model, shown.stacked, reducers).results
            curves["mean_distance_px"].append(distances.mean(axis=(0, 2)))
            maps = {f"rollout, step {step:,}": rollout.patches}
            pixels = observe.seen_pixels(model, shown.pixels(shown.stacked))
            drawn = draw_overlays(pixels, maps, shown.names)
            frames["rollout"].append(style.pixels(drawn, dpi=75))
        progress(done + 1, len(steps))
    quantities = {
        UNITS[name][0]: Quantity(np.array(values), UNITS[name][1])
        for name, values in curves.items()
        if values
    }
    pictures = [
        Picture(
            f"{name}_over_steps",
            f"{name.capitalize()} over training",
            f"A frame for each of {len(drawn_frames)} checkpoints.",
            webp(drawn_frames),
            "webp",
        )
        for name, drawn_frames in frames.items()
        if drawn_frames
    ]
    if quantities:
        note = "Numbers of each checkpoint; of layers, the first is dark and the last light."
        draw = functools.partial(draw_curves, steps, quantities)
        pictures.insert(0, Picture("development", "Development", note, draw))
    return Findings(Section(TITLE, pictures), {})


CURVE_COLUMNS = 2  # of curves


class Quantity(NamedTuple):
    """A quantity of each checkpoint.

    Attributes:
      values: [T], or [T, K] for K layers, coloured from the first to the last.
      unit: "pixels", "%".
    """

    values: np.ndarray
    unit: str


@style.styled
def draw_curves(steps: Sequence[int], quantities: Mapping[str, Quantity]) -> Figure:
    """One panel for each quantity, over the steps of T checkpoints."""
    columns = min(1 if style.is_narrow() else CURVE_COLUMNS, len(quantities))
    rows = math.ceil(len(quantities) / columns)
    figure = style.blank(3.6 * columns, 2.5 * rows + 0.35)
    for k, (name, quantity) in enumerate(quantities.items()):
        axes = figure.add_subplot(rows, columns, k + 1)
        values = np.asarray(quantity.values).reshape(len(steps), -1)
        number = values.shape[1]
        for j, curve in enumerate(values.T):
            # The lightest end of the map cannot be seen on white.
            colour = matplotlib.colormaps[style.SIGNED](0.88 * j / max(number - 1, 1))
            axes.plot(steps, curve, color=colour, marker="o", ms=3.5, lw=1.2)
        axes.set_ylabel(tiles.fit(f"{name} ({quantity.unit})", 2.2, style.FONT, lines=2))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(style.Labels())
        if number > 1:
            note = f"{number} layers, from the first (dark) to the last (light)"
            axes.set_title(note, loc="left", size=style.SMALL, color=style.MUTED)
    style.entitle(figure, "Development")
    return figure


FRAME_SECS, LAST_SECS = 0.6, 2.0  # the last one before it starts again
QUALITY = 80  # of WebP
WIDEST = 640  # pixels


def webp(frames: Sequence[np.ndarray]) -> bytes:
    """Frames, uint8 [H, W, 3] of one size, as a WebP that repeats.

    Frames wider than WIDEST are made smaller.
    """
    images = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    width, height = images[0].size
    if width > WIDEST:
        smaller = (WIDEST, max(1, round(height * WIDEST / width)))
        images = [image.resize(smaller, Image.Resampling.LANCZOS) for image in images]
    out = io.BytesIO()
    images[0].save(
        out,
        "WEBP",
        save_all=True,
        append_images=images[1:],
        duration=[round(1000 * FRAME_SECS)] * (len(images) - 1) + [round(1000 * LAST_SECS)],
        loop=0,
        quality=QUALITY,
        method=4,
    )
    return out.getvalue()
