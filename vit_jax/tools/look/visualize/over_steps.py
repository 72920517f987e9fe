"""How what a model has learnt develops over the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.draw import movie, of_weights
from vit_jax.draw.figures import development
from vit_jax.draw.figures.development import Quantity
from vit_jax.draw.figures.heat import overlays as draw_overlays
from vit_jax.draw.figures.positions import positions as draw_positions
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.style import look
from vit_jax.models import observe
from vit_jax.probes import positions
from vit_jax.store import workdir as workdirs

TITLE = "Over training"
ALL = "all"
# Of the curves: a number's name -> what its axis says, and its unit.
UNITS = {
    "positions_row_plus_column": ("positions: row plus column", "share of variance"),
    "mean_distance_px": ("mean attention distance", "pixels"),
}


def steps_of(workdir: str, asked: str) -> list[int]:
    """The steps of a work directory that are asked for: "all", or "1000,2000".

    UserError for what is no work directory, or has not these checkpoints.
    """
    there = sorted(workdirs.steps(_folder(workdir)))
    if not there:
        raise UserError(f"--steps={asked}: {workdir} is no work directory with checkpoints.")
    if asked == ALL:
        return there
    words = asked.split(",")
    missing = [word for word in words if not word.isdecimal() or int(word) not in there]
    if missing:
        raise UserError(
            f"--steps={asked}: no checkpoint of step {missing[0]!r} in {workdir}; there are "
            f"{', '.join(map(str, there))}."
        )
    return sorted({int(word) for word in words})


def check(model: Any) -> None:
    """UserError for a model in which nothing can be followed."""
    if not observe.has_attention(model):
        raise UserError(
            f"--steps follows positions and attention, and a {type(model).__name__} has neither. "
            "Leave it out."
        )


def checkpoint(workdir: str, step: int) -> epath.Path:
    """The folder of a step of `steps_of`."""
    return _folder(workdir) / str(step)


def _folder(workdir: str) -> epath.Path:
    return epath.Path(workdir).expanduser() / "checkpoints"


def findings(
    steps: Sequence[int],
    load: Callable[[int], Any],
    inputs: np.ndarray,
    pixels: np.ndarray,
    captions: Sequence[str],
    progress: Callable[[int, int], None],
) -> Findings:
    """Curves and movies over steps.

    Args:
      load: a step -> its model, evaluation mode.
      inputs, pixels, captions: of a few photos.
    """
    frames: dict[str, list[np.ndarray]] = {"positions": [], "rollout": []}
    curves: dict[str, list[Any]] = {name: [] for name in UNITS}
    for done, step in enumerate(steps):
        model = load(step)
        table = of_weights.position_table(model)
        if table is not None:
            curves["positions_row_plus_column"].append(positions.grid_share(table))
            drawn = draw_positions(positions.similarity(table), note=f"step {step:,}")
            frames["positions"].append(look.pixels(drawn, dpi=75))
        if observe.has_attention(model):
            reducers = (observe.Rollout(), observe.Distances())
            rollout, distances = observe.look(model, inputs, reducers).results
            curves["mean_distance_px"].append(distances.mean(axis=(0, 2)))
            maps = {f"rollout, step {step:,}": rollout.patches}
            frames["rollout"].append(look.pixels(draw_overlays(pixels, maps, captions), dpi=75))
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
            f"A frame for each of {len(shown)} checkpoints.",
            movie.webp(shown),
            "webp",
        )
        for name, shown in frames.items()
        if shown
    ]
    if quantities:
        note = "Numbers of each checkpoint; of layers, the first is dark and the last light."
        drawn = development.curves(steps, quantities)
        pictures.insert(0, Picture("development", "Development", note, look.png(drawn), wide=True))
    return Findings(Section(TITLE, pictures), {})
