"""Learning rates of the five schedules, by step."""

from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.draw.canvas import Canvas
from vit_jax.optim import schedules

FILE = Path(__file__).parents[2] / "docs" / "schedules.png"
STEPS = 200
# A curve: its name, its colour, and how it differs from 200 steps with 20 of warmup.
CURVES = (
    ("linear", "#3366cc", {}),
    ("cosine", "#cc3333", {}),
    ("constant, cooldown 20 %", "#229944", {"cooldown_steps": 40}),
    ("rsqrt, cooldown 20 %", "#aa55bb", {"cooldown_steps": 40}),
    ("exponential", "#888888", {}),
)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 48, 16, 176, 36


def rates(name: str, changes: dict[str, int]) -> list[float]:
    """The curve from 0 to the last step, to three decimals."""
    fields = {"peak": 1.0, "warmup_steps": 20, "cooldown_steps": 0, "total_steps": STEPS}
    fields |= {"rsqrt_timescale_steps": 40, "exponential_factor": 0.7, "exponential_steps": 15}
    lr = schedules.schedule(name.split(",", maxsplit=1)[0], **{**fields, **changes})
    return np.round(np.asarray(lr(np.arange(STEPS + 1))), 3).tolist()


def facts() -> dict[str, list[float]]:
    """Learning rates by curve name."""
    return {name: rates(name, changes) for name, _, changes in CURVES}


def draw(curves: dict[str, list[float]]) -> Image.Image:
    """Draws axes, curves and their names."""
    canvas = Canvas(WIDTH, HEIGHT)

    def at(step: float, rate: float, dx: float = 0, dy: float = 0) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / STEPS
        return x + dx, TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate) + dy

    for rate in (0, 0.5, 1):
        canvas.line([at(0, rate), at(STEPS, rate)], "#dddddd")
        canvas.text(at(0, rate, dx=-6), f"{rate:g}", anchor="rm")
    for step in range(0, STEPS + 1, 50):
        canvas.text(at(step, 0, dy=8), f"{100 * step // STEPS} %", anchor="mt")
    for i, (name, colour, _) in enumerate(CURVES):
        canvas.line([at(s, r) for s, r in enumerate(curves[name])], colour, 2)
        canvas.text(at(STEPS, 1 - 0.1 * i, dx=14), name, colour, anchor="lm")
    return canvas.finished()
