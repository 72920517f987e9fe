"""Draws a contact sheet: images in rows, with a few words under each."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.draw import style, tiles

# In pixels.
SMALLEST_SIDE = 112  # images are enlarged by a whole factor to at least this
MARGIN, GAP = 24, 16
LINE_HEIGHT, TITLE_HEIGHT = 17, 28
SMALLEST_WIDTH = 640  # of a sheet: room for its title

ASPECT = 1.4  # width to height that the rows are chosen for

PAPER, INK, PALE, RED = "#ffffff", style.INK, style.MUTED, style.VERMILION


@dataclasses.dataclass(frozen=True)
class Cell:
    """An image and the text under it."""

    image: np.ndarray  # uint8 [H, W, 3]; all images of a sheet have one size
    labels: Sequence[tuple[str, str]]  # dark lines: a name, cut if it is too long, and its suffix
    note: str  # a grey line below them
    crossed: bool = False  # whether it is drawn as not counting


@dataclasses.dataclass(frozen=True)
class SheetLayout:
    """The layout of a sheet's cells, in pixels."""

    columns: int
    rows: int
    scale: int  # image pixels become squares of this side
    width: int  # of an image as it is drawn
    height: int
    text_height: int  # below it
    top: int  # of the first row

    def corner(self, i: int) -> tuple[int, int]:
        """(left, top) of image i."""
        row, column = divmod(i, self.columns)
        return (
            MARGIN + column * (self.width + GAP),
            self.top + row * (self.height + self.text_height + GAP),
        )

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the sheet."""
        width = self.columns * (self.width + GAP) - GAP
        height = self.rows * (self.height + self.text_height + GAP) - GAP
        return max(width + 2 * MARGIN, SMALLEST_WIDTH), self.top + height + MARGIN


def grid(cells: Sequence[Cell], num_titles: int, columns: int | None = None) -> SheetLayout:
    """The layout of at least one cell below `num_titles` lines of title.

    columns: as many as that; None: so that the sheet has a screen's aspect.
    """
    height, width, _ = cells[0].image.shape
    scale = math.ceil(SMALLEST_SIDE / min(height, width))
    text_height = LINE_HEIGHT * (1 + max(len(cell.labels) for cell in cells)) + 6
    aspect = (width * scale + GAP) / (height * scale + text_height + GAP)
    columns = columns or min(len(cells), math.ceil(math.sqrt(len(cells) * ASPECT / aspect)))
    return SheetLayout(
        columns=columns,
        rows=math.ceil(len(cells) / columns),
        scale=scale,
        width=width * scale,
        height=height * scale,
        text_height=text_height,
        top=MARGIN + num_titles * TITLE_HEIGHT + GAP // 2,
    )


def draw(titles: Sequence[str], cells: Sequence[Cell], columns: int | None = None) -> Image.Image:
    """Draws the sheet; pixels of images are enlarged by a whole factor, and not changed."""
    places = grid(cells, len(titles), columns)
    sheet = Image.new("RGB", places.size, PAPER)
    pen = ImageDraw.Draw(sheet)
    large, small = (ImageFont.truetype(tiles.FONT_FILE, size) for size in (20, 14))
    room = places.size[0] - 2 * MARGIN
    for line, title in enumerate(titles):
        font, colour = (large, INK) if line == 0 else (small, PALE)
        y = MARGIN + line * TITLE_HEIGHT
        pen.text((MARGIN, y), one_line(title, font, room), colour, font)
    for i, cell in enumerate(cells):
        x, y = places.corner(i)
        image = Image.fromarray(cell.image.repeat(places.scale, 0).repeat(places.scale, 1))
        sheet.paste(image, (x, y))
        # Around the image, not over it: all of its pixels stay visible.
        pen.rectangle((x - 1, y - 1, x + image.width, y + image.height), outline=style.GRID)
        if cell.crossed:
            right, bottom = x + image.width - 1, y + image.height - 1
            pen.line((x, y, right, bottom), RED, width=3)
            pen.line((x, bottom, right, y), RED, width=3)
        y += image.height + 5
        for name, value in cell.labels:
            pen.text((x, y), one_line(name, small, image.width, value), INK, small)
            y += LINE_HEIGHT
        colour = RED if cell.crossed else PALE
        pen.text((x, y), one_line(cell.note, small, image.width), colour, small)
    return sheet


def one_line(text: str, font: ImageFont.FreeTypeFont, length_px: float, ending: str = "") -> str:
    """Fits `text` and `ending` into a line; the end of the text gives way to "…"."""
    room = length_px - font.getlength(ending)
    return tiles.fit(text, room / 72, font.size) + ending  # a point is a pixel at 72 dpi
