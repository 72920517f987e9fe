"""The results of the sweep whose table is in docs/sweeps.md."""

from itertools import takewhile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vit_jax.tools.lab.sweep import picture

DOCS = Path(__file__).parents[1]
FILE = DOCS / "sweep.png"
HEAD = ["optim.lr", "seed", "test/accuracy"]


def facts() -> dict[str, Any]:
    """Accuracies of the seeds by learning rate."""
    lines = [line.split()[:3] for line in (DOCS / "sweeps.md").read_text().splitlines()]
    accuracies: dict[str, list[float]] = {}
    for rate, _, accuracy in takewhile(bool, lines[lines.index(HEAD) + 1 :]):
        accuracies.setdefault(rate, []).append(round(float(accuracy.rstrip("%")) / 100, 4))
    return {"accuracies": accuracies}


def draw(facts: dict[str, Any]) -> Figure:
    """Draws the picture as the sweep itself does."""
    return picture.draw(HEAD[0], {"": facts["accuracies"]}, HEAD[2])
