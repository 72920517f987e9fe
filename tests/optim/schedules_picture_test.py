"""docs/schedules.png shows what the code computes; drawn anew by --regenerate_goldens."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from vit_jax.optim import schedules

FILE = Path(__file__).parents[2] / "docs" / "schedules.png"
STEPS = 200
# A curve: what to call it, its colour, and what differs from a schedule of 200 steps, 20 of warmup.
CURVES = (
    ("linear", "#3366cc", {}),
    ("cosine", "#cc3333", {}),
    ("constant, cooldown 20 %", "#229944", {"cooldown_steps": 40}),
    ("rsqrt, cooldown 20 %", "#aa55bb", {"cooldown_steps": 40}),
)
ROUNDING = 1e-3  # far less than a pixel

SCALE = 3  # drawn larger and shrunk, so that lines are smooth
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 48, 16, 176, 36


def values(name, changes):
    """The curve from 0 to the last step, three decimals."""
    fields = {"peak": 1.0, "warmup_steps": 20, "cooldown_steps": 0, "total_steps": STEPS}
    fields |= {"rsqrt_timescale_steps": 40}
    lr = schedules.schedule(name.split(",")[0], **{**fields, **changes})
    return np.round(np.asarray(lr(np.arange(STEPS + 1))), 3).tolist()


def draw(curves):
    """Axes, curves and their names."""
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(12 * SCALE)

    def at(step, rate):
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / STEPS
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate)
        return x * SCALE, y * SCALE

    def text(step, rate, what, anchor, fill="black", dx=0, dy=0):
        x, y = at(step, rate)
        pen.text((x + dx * SCALE, y + dy * SCALE), what, fill=fill, font=font, anchor=anchor)

    for rate in (0, 0.5, 1):
        pen.line([at(0, rate), at(STEPS, rate)], "#dddddd", SCALE)
        text(0, rate, f"{rate:g}", "rm", dx=-6)
    for step in range(0, STEPS + 1, 50):
        text(step, 0, f"{100 * step // STEPS} %", "mt", dy=8)
    for i, (name, colour, _) in enumerate(CURVES):
        pen.line([at(s, r) for s, r in enumerate(curves[name])], colour, 2 * SCALE, joint="curve")
        text(STEPS, 1 - 0.1 * i, name, "lm", fill=colour, dx=14)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def test_picture_shows_every_schedule_as_it_is(request):
    curves = {name: values(name, changes) for name, _, changes in CURVES}
    assert {name.split(",")[0] for name in curves} == set(schedules.DECAYS)
    if request.config.getoption("--regenerate_goldens"):
        info = PngImagePlugin.PngInfo()
        info.add_text("curves", json.dumps(curves), zip=True)
        draw(curves).save(FILE, pnginfo=info, optimize=True)
    shown = json.loads(Image.open(FILE).text["curves"])
    assert shown.keys() == curves.keys()
    for name, curve in curves.items():
        np.testing.assert_allclose(shown[name], curve, atol=ROUNDING)
