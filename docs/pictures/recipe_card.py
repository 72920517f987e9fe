"""Losses of the runs recorded by the digits' recipe card, and its permitted ranges."""

from pathlib import Path
from typing import Any

from etils import epath
from matplotlib.figure import Figure

from vit_jax.draw import style
from vit_jax.tools.verify import recipe_card

ROOT = Path(__file__).parents[2]
CARD = epath.Path(ROOT / "cards" / "vit_digits.json")
FILE = ROOT / "docs" / "digits_curves.png"

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


@style.styled
def draw(facts: dict[str, Any]) -> Figure:
    """Draws the training loss on the left; on the right the evaluations' over their ranges."""
    figure = style.blank(8.6, 3.0)
    curves, last_step = facts["curves"], facts["curves"][TRAIN]["steps"][-1]
    left, right = figure.subplots(1, 2)
    for axes, most, title in (
        (left, 2.5, "train/loss of single batches"),
        (right, 0.5, "test/loss, and in grey the range for another run"),
    ):
        axes.set_title(title, loc="left")
        axes.set(xlim=(0, 1.02 * last_step), ylim=(0, most), xlabel="step")
        axes.grid(axis="x", visible=False)
    steps, low, high = zip(*facts["ranges"], strict=True)
    right.vlines(steps, low, high, color="#c8c8c8", lw=5)
    for axes, curve in ((left, curves[TRAIN]), (right, curves[TEST])):
        for i, (seed, values) in enumerate(zip(facts["seeds"], curve["runs"], strict=True)):
            axes.plot(curve["steps"], values, color=style.SERIES[i], lw=0.7, label=f"seed {seed}")
    left.legend()
    return figure
