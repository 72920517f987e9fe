"""docs/digits_curves.png shows the digits' recipe card; drawn anew by --regenerate_goldens."""

import hashlib
from pathlib import Path

from etils import epath
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from vit_jax.verify import recipe_card

ROOT = Path(__file__).parents[2]
CARD, FILE = ROOT / "cards" / "vit_digits.json", ROOT / "docs" / "digits_curves.png"
COLOURS = ("#3366cc", "#cc3333", "#229944")

SCALE = 3  # drawn larger and shrunk, so that lines are smooth
WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 860, 300, 40, 36, 40, 60


class Panel:
    """Axes over the steps of the runs, from 0 to `top`."""

    def __init__(self, pen, end, number, top):
        self.pen, self.end, self.top = pen, end, top
        self.width = (WIDTH - 2 * LEFT - GAP) / 2
        self.left = LEFT + number * (self.width + GAP)
        self.font = ImageFont.load_default(12 * SCALE)

    def at(self, step, value):
        x = self.left + self.width * step / self.end
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.top)
        return x * SCALE, y * SCALE

    def text(self, step, value, what, anchor, fill="black", dx=0, dy=0):
        x, y = self.at(step, value)
        place = (x + dx * SCALE, y + dy * SCALE)
        self.pen.text(place, what, fill=fill, font=self.font, anchor=anchor)

    def axes(self, title, lines):
        self.text(0, self.top, title, "lb", dy=-12)
        for i in range(lines + 1):
            value = self.top * i / lines
            self.pen.line([self.at(0, value), self.at(self.end, value)], "#e8e8e8", SCALE)
            self.text(0, value, f"{value:.2g}", "rm", dx=-6)
        for step in range(0, self.end + 1, 200):
            self.text(step, 0, f"{step:,}", "mt", dy=8)

    def curves(self, curve):
        for colour, values in zip(COLOURS, curve.runs, strict=True):
            points = [self.at(*point) for point in zip(curve.steps, values, strict=True)]
            self.pen.line(points, colour, SCALE, joint="curve")


def draw(card):
    """The training loss of each run; and the evaluations' over the ranges for further runs."""
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    pen = ImageDraw.Draw(image)
    left = Panel(pen, card.end, 0, 2.5)
    left.axes("train/loss of single batches", 5)
    left.curves(card.curves[recipe_card.LOSS])
    for i, run in enumerate(card.runs):
        left.text(card.end, 2.5 - 0.2 * i, f"seed {run['seed']}", "rt", COLOURS[i], dy=6)
    right = Panel(pen, card.end, 1, 0.5)
    right.axes("test/loss, and in grey the range for another run", 5)
    test = card.curves["test/loss"]
    for c in recipe_card.compare(card, {step: {"test/loss": 0.0} for step in test.steps}):
        pen.line([right.at(c.step, c.low), right.at(c.step, c.high)], "#c8c8c8", 8 * SCALE)
    right.curves(test)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def test_picture_shows_the_card_as_it_is(request):
    digest = hashlib.sha256(CARD.read_bytes()).hexdigest()
    if request.config.getoption("--regenerate_goldens"):
        info = PngImagePlugin.PngInfo()
        info.add_text("card", digest)
        draw(recipe_card.read(epath.Path(CARD))).save(FILE, pnginfo=info, optimize=True)
    assert Image.open(FILE).text["card"] == digest
