"""Learning rates of the five schedules, by step."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit_jax.draw import style
from vit_jax.learning.optim import schedules

FILE = Path(__file__).parents[2] / "docs" / "schedules.png"
STEPS = 200
# Curves of 200 steps with 20 of warmup: the decay with its fields, and the steps of a cooldown.
CURVES = {
    "linear": ({}, 0),
    "cosine": ({}, 0),
    "constant, cooldown 20 %": ({}, 40),
    "rsqrt, cooldown 20 %": ({"rsqrt_timescale_steps": 40}, 40),
    "exponential": ({"exponential_factor": 0.7, "exponential_epochs": 15}, 0),
}


def rates(name: str, fields: dict[str, float], cooldown_steps: int) -> list[float]:
    """The curve from 0 to the last step, to three decimals."""
    lr = schedules.schedule(
        schedules.DECAYS[name.partition(",")[0]](**fields),
        peak=1.0, warmup_steps=20, cooldown_steps=cooldown_steps, total_steps=STEPS,
    )  # fmt: skip
    return np.round(np.asarray(lr(np.arange(STEPS + 1))), 3).tolist()


def facts() -> dict[str, list[float]]:
    """Learning rates by curve name."""
    return {name: rates(name, *curve) for name, curve in CURVES.items()}


@style.styled
def draw(curves: dict[str, list[float]]) -> Figure:
    """Draws axes, curves and their names."""
    figure = style.blank(6.4, 3.0)
    axes = figure.add_subplot()
    for i, (name, rates) in enumerate(curves.items()):
        axes.plot(rates, color=style.SERIES[i], label=name)
    axes.set(xlim=(0, STEPS), ylim=(0, 1.03), yticks=(0, 0.5, 1))
    axes.set_xticks(range(0, STEPS + 1, 50))
    axes.xaxis.set_major_formatter(PercentFormatter(STEPS, symbol=" %"))
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside right upper")
    return figure
