"""Development of what a model has learnt over the checkpoints of a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from etils import epath
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vit_jax.core.arrays import encode
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
POSITIONS = "positions: row plus column (share of variance)"
DISTANCE = "mean attention distance (pixels)"


def parse_steps(workdir: str, requested: str) -> list[int]:
    """Parses steps of a work directory: "all", or "1000,2000"."""
    available = {str(step): step for step in sorted(workdirs.steps(checkpoints(workdir)))}
    words = list(available) if requested == ALL else requested.split(",")
    if not words or not available.keys() >= {*words}:
        rule = f"is not all, or some, of the steps there: {', '.join(available) or 'none'}."
        raise UserError(rule, field="--steps", value=requested)
    return sorted({available[word] for word in words})


def checkpoints(workdir: str) -> epath.Path:
    return epath.Path(workdir).expanduser() / "checkpoints"


def findings(
    models: Iterable[tuple[int, Any]],
    number: int,
    shown: Photos,
    progress: Callable[[int, int], None],
) -> Findings:
    """Curves and movies of a few photos over `number` steps, each with its model."""
    steps: list[int] = []
    frames: dict[str, list[np.ndarray]] = {"positions": [], "rollout": []}
    curves: dict[str, list[Any]] = {POSITIONS: [], DISTANCE: []}
    for step, model in models:
        steps.append(step)
        table = position_table(model)
        if table is not None:
            curves[POSITIONS].append(first_layer.grid_share(table))
            drawn = draw_positions(first_layer.similarity(table), note=f"step {step:,}")
            frames["positions"].append(style.pixels(drawn, dpi=75))
        if observe.has_attention(model):
            reducers = (observe.Rollout(), observe.Distances())
            rollout, distances = observe.look(model, shown.stacked, reducers).results
            curves[DISTANCE].append(distances.mean(axis=(0, 2)))
            maps = {f"rollout, step {step:,}": rollout.patches}
            pixels = observe.seen_pixels(model, shown.pixels(shown.stacked))
            drawn = draw_overlays(pixels, maps, shown.names)
            frames["rollout"].append(style.pixels(drawn, dpi=75))
        progress(len(steps), number)
    quantities = {name: np.array(values) for name, values in curves.items() if values}
    pictures = []
    if quantities:
        note = "Numbers of each checkpoint; of layers, the first is dark and the last light."
        draw = functools.partial(draw_curves, steps, quantities)
        pictures.append(Picture("development", "Development", note, draw))
    for name, drawn_frames in frames.items():
        if drawn_frames:
            title, note = f"{name.capitalize()} over training", "A frame for each checkpoint."
            file = f"{name}_over_steps"
            pictures.append(Picture(file, title, note, webp(drawn_frames), "webp"))
    return Findings(Section(TITLE, pictures), {})


CURVE_COLUMNS = 2  # of curves


@style.styled
def draw_curves(steps: Sequence[int], quantities: Mapping[str, np.ndarray]) -> Figure:
    """Draws a panel for each quantity ("... (unit)") of T checkpoints, [T] or [T, layers]."""
    columns = min(1 if style.is_narrow() else CURVE_COLUMNS, len(quantities))
    rows = math.ceil(len(quantities) / columns)
    figure = style.blank(3.6 * columns, 2.5 * rows + 0.35)
    for k, (name, quantity) in enumerate(quantities.items()):
        axes = figure.add_subplot(rows, columns, k + 1)
        values = np.asarray(quantity).reshape(len(steps), -1)
        number = values.shape[1]
        for j, curve in enumerate(values.T):
            # The lightest end of the map cannot be seen on white.
            colour = matplotlib.colormaps[style.SIGNED](0.88 * j / max(number - 1, 1))
            axes.plot(steps, curve, color=colour, marker="o", ms=3.5, lw=1.2)
        axes.set_ylabel(tiles.fit(name, 2.2, style.FONT, lines=2))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(style.tick_labels())
        if number > 1:
            note = f"{number} layers, from the first (dark) to the last (light)"
            axes.set_title(note, loc="left", size=style.SMALL, color=style.MUTED)
    style.entitle(figure, "Development")
    return figure


FRAME_MS, LAST_MS = 600, 2000  # the last one before it starts again
QUALITY = 80  # of WebP
WIDEST = 640  # pixels


def webp(frames: Sequence[np.ndarray]) -> bytes:
    """Encodes frames, uint8 [H, W, 3], as a WebP that repeats, at most WIDEST wide."""
    images = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    width, height = images[0].size
    if width > WIDEST:
        smaller = (WIDEST, max(1, round(height * WIDEST / width)))
        images = [image.resize(smaller, Image.Resampling.LANCZOS) for image in images]
    durations = [FRAME_MS] * (len(images) - 1) + [LAST_MS]
    movie = {"save_all": True, "append_images": images[1:], "duration": durations, "loop": 0}
    return encode(images[0], "WEBP", **movie, quality=QUALITY, method=4)
