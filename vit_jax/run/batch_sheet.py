"""A contact sheet of the images and labels that a step learns from."""

from collections.abc import Callable

import jax
import numpy as np

from vit_jax.config import RunConfig
from vit_jax.core.arrays import displayed, encode
from vit_jax.data.source import Source
from vit_jax.draw import contact_sheet, tiles
from vit_jax.draw.contact_sheet import Cell
from vit_jax.learning.losses import Batch, Objective
from vit_jax.learning.method import view_names
from vit_jax.run.parts.durations import Durations

MOST_LABELS = 3  # under an image
VIEW_GAP = 2  # pixels between views of an image


def draw(
    config: RunConfig,
    source: Source,
    objective: Objective,
    durations: Durations,
    examples: Batch,
    *,
    title: str,
    step: int,
) -> bytes:
    """Draws the first examples of a step, as inputs.first_examples gives them, as a PNG file."""
    seen = jax.device_get(examples)
    mean, std = (np.asarray(x, np.float32) for x in (objective.mean, objective.std))
    pixels = seen["images"] * std + mean
    if not source.pixels.stored:
        pixels = np.rint(pixels * 255).clip(0, 255).astype(np.uint8)
    views = (pixels, *(seen[name] for name in view_names(len(config.input.views))))
    pixels = side_by_side(list(map(displayed, views)))
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    indices = seen.get("index", [None] * len(pixels))
    arrays = (seen["targets"], seen["weight"], indices, seen["is_good"] > 0)
    shown = zip(pixels, *arrays, strict=False)
    cells = [_cell(*each, names, source.describe) for each in shown]
    left_out = ", left out by input.skip_steps" if durations.skips(step) else ""
    titles = [
        f"Step {step:,} of {durations.total_steps:,}: {title}",
        f"epoch {step / durations.steps_per_epoch:.1f}, seed {config.seed}, {len(cells):,} of "
        f"{config.input.batch_size:,} examples, {config.input.preprocess}{left_out}",
    ]
    return encode(contact_sheet.draw(titles, cells), "PNG")


def side_by_side(views: list[np.ndarray]) -> np.ndarray:
    """Views of images, uint8 [N, h, w, 3] each -> [N, H, W, 3], with white around smaller ones."""
    height = max(view.shape[1] for view in views)
    padded = [
        np.pad(x, ((0, 0), (0, height - x.shape[1]), (0, VIEW_GAP), (0, 0)), constant_values=255)
        for x in views
    ]
    return np.concatenate(padded, axis=2)[:, :, :-VIEW_GAP]


def _cell(
    image: np.ndarray,
    targets: np.ndarray,
    weight: float,
    index: int | None,
    is_good: bool,
    names: tuple[str, ...],
    describe: Callable[[int], str],
) -> Cell:
    """An example above its largest targets ("cat: 0.700"), and its file or number and weight."""
    order = [c for c in np.argsort(-targets, kind="stable") if targets[c] > 0]
    shares = ["" if targets[c] == 1 else f": {targets[c]:.3f}" for c in order]
    labels = [(_drawable(names[c], c), share) for c, share in zip(order, shares, strict=True)]
    if len(labels) > MOST_LABELS:
        labels[MOST_LABELS - 1 :] = [(f"and {len(labels) - MOST_LABELS + 1} more", "")]
    notes = [] if index is None else [describe(int(index)).rpartition("/")[2]]
    if notes and (", " in notes[0] or "." not in notes[0]):  # a record, which has no name
        notes = [f"#{index}"]
    notes += ["bad image"] if not is_good else [f"weight {weight:.3g}"] if weight != 1 else []
    return Cell(image, labels, ", ".join(notes), crossed=not weight)


def _drawable(name: str, number: int) -> str:
    """The class's name; with its number where the font lacks some of the letters."""
    return f"{number} {name}" if tiles.ABSENT in tiles.drawable(name) else name
