"""Pictures in pixels, drawn larger and shrunk, so that lines are smooth."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from vit_jax.draw import scales
from vit_jax.draw.scales import Axes

COLOURS = ("#3366cc", "#cc3333", "#229944", "#e08a00", "#8844bb", "#1199aa", "#a05a2c", "#777777")
INK, PALE, RULE = "#1b1b1b", "#6a6a6a", "#e4e4e4"  # of texts, marks, lines of a grid

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
XY = tuple[float, float]


class Canvas:
    """A white canvas. All sizes are in pixels of the finished picture."""

    def __init__(self, width: int, height: int, *, scale: int = 3):
        self.size, self.scale = (width, height), scale
        self.image = Image.new("RGB", (width * scale, height * scale), "white")
        self.pen = ImageDraw.Draw(self.image)

    def font(self, size: float) -> Font:
        """The font of a size, scaled up for the drawing before it is shrunk."""
        return ImageFont.load_default(size * self.scale)

    def line(self, points: Sequence[XY], colour: str, width: int = 1) -> None:
        """Draws a line through points."""
        scaled = [(x * self.scale, y * self.scale) for x, y in points]
        self.pen.line(scaled, colour, width * self.scale, joint="curve")

    def text(
        self, at: XY, text: str, colour: str = "black", *, size: float = 12, anchor: str = "la"
    ) -> None:
        """Draws a text, on several lines if it has line breaks; anchor: Pillow's."""
        place = (at[0] * self.scale, at[1] * self.scale)
        self.pen.text(place, text, colour, self.font(size), anchor=anchor, align="center")

    def rectangle(self, corner: XY, opposite: XY, colour: str, outline: str) -> None:
        """Draws a box with an outline of one pixel."""
        box = [x * self.scale for x in (*corner, *opposite)]
        self.pen.rectangle(box, colour, outline, self.scale)

    def dot(self, at: XY, radius: float, colour: str, outline: str) -> None:
        """Draws a circle with an outline."""
        box = [(x + r) * self.scale for r in (-radius, radius) for x in at]
        self.pen.ellipse(box, colour, outline, width=round(1.2 * self.scale))

    def grid(
        self, axes: Axes, ticks: Sequence[float], *, line: str, ink: str, percent: bool = False
    ) -> None:
        """Draws horizontal lines with their values."""
        for tick, label in zip(ticks, scales.labels(ticks, percent=percent), strict=True):
            y = axes.y(tick)
            self.line([(axes.left, y), (axes.right, y)], line)
            self.text((axes.left - 8, y), label, ink, anchor="rm")

    def length(self, text: str, size: float = 12) -> float:
        """The length of a text."""
        return self.font(size).getlength(text) / self.scale

    def cut(self, text: str, length: float, size: float = 12) -> str:
        """The part of a text that fits."""
        return cut(text, self.font(size), length * self.scale)

    def finished(self) -> Image.Image:
        """The picture."""
        return self.image.resize(self.size, Image.Resampling.LANCZOS)


def cut(text: str, font: Font, length: float, ending: str = "") -> str:
    """`text` and `ending` in at most `length` pixels; the end of the text gives way to "…"."""
    if font.getlength(text + ending) <= length:
        return text + ending
    while text and font.getlength(f"{text}…{ending}") > length:
        text = text[:-1]
    return f"{text.rstrip()}…{ending}"
