"""Losses of the runs recorded by the digits' recipe card, and its permitted ranges."""

from pathlib import Path
from typing import Any

from etils import epath
from PIL import Image

from vit_jax.draw.canvas import COLOURS, Canvas
from vit_jax.draw.scales import Axes, Scale
from vit_jax.tools.verify import recipe_card

ROOT = Path(__file__).parents[2]
CARD = epath.Path(ROOT / "cards" / "vit_digits.json")
FILE = ROOT / "docs" / "digits_curves.png"

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 860, 300, 40, 36, 40, 60
TRAIN, TEST = recipe_card.LOSS, "test/loss"


def facts() -> dict[str, Any]:
    """The runs' seeds, their curves, and the ranges for another run."""
    card = recipe_card.read(CARD)
    curves = {metric: card.curves[metric] for metric in (TRAIN, TEST)}
    any_values = {step: {TEST: 0.0} for step in curves[TEST].steps}
    ranges = [(c.step, c.low, c.high) for c in recipe_card.compare(card, any_values)]
    return {
        "seeds": [run["seed"] for run in card.runs],
        "curves": {name: {"steps": c.steps, "runs": c.runs} for name, c in curves.items()},
        "ranges": [[step, round(low, 6), round(high, 6)] for step, low, high in ranges],
    }


def draw(facts: dict[str, Any]) -> Image.Image:
    """Draws the training loss on the left; on the right the evaluations' over their ranges."""
    canvas = Canvas(WIDTH, HEIGHT)
    curves, last_step = facts["curves"], facts["curves"][TRAIN]["steps"][-1]
    left = _axes(canvas, 0, last_step, 2.5, "train/loss of single batches")
    _lines(canvas, left, curves[TRAIN])
    for i, (seed, colour) in enumerate(zip(facts["seeds"], COLOURS, strict=False)):
        place = (left.right, left.y(2.5 - 0.2 * i) + 6)
        canvas.text(place, f"seed {seed}", colour, anchor="rt")
    right = _axes(canvas, 1, last_step, 0.5, "test/loss, and in grey the range for another run")
    for step, low, high in facts["ranges"]:
        canvas.line([right.at((step, low)), right.at((step, high))], "#c8c8c8", 8)
    _lines(canvas, right, curves[TEST])
    return canvas.finished()


def _axes(canvas: Canvas, number: int, last_step: int, most: float, title: str) -> Axes:
    """Draws axes from 0 for the first or the second half."""
    width = (WIDTH - 2 * LEFT - GAP) / 2
    left = LEFT + number * (width + GAP)
    up = Scale(0, most)
    axes = Axes(Scale(0, last_step), up, left, left + width, TOP, HEIGHT - BOTTOM)
    canvas.text((left, TOP - 12), title, anchor="lb")
    canvas.grid(axes, up.ticks(5), line="#e8e8e8", ink="black")
    for step in range(0, last_step + 1, 200):
        canvas.text((axes.x(step), axes.bottom + 8), f"{step:,}", anchor="mt")
    return axes


def _lines(canvas: Canvas, axes: Axes, curve: dict[str, Any]) -> None:
    for colour, values in zip(COLOURS, curve["runs"], strict=False):
        points = zip(curve["steps"], values, strict=True)
        canvas.line([axes.at(point) for point in points], colour)
