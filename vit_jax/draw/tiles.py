"""Sheets of small pictures, with text made to fit under each; placed in inches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font, LoadFlags

from vit_jax.draw import style

FONT_FILE = font_manager.findfont("DejaVu Sans")  # which matplotlib ships
CUT = "…"
ABSENT = "\N{WHITE SQUARE}"  # for what the font has no picture of
_WIDER = 1.03  # letters are drawn on whole pixels
_BREAKS = " -_/.,"  # after these a line may end


def fit(text: str, width_in: float, size: float, *, lines: int = 1) -> str:
    """Wraps the text into at most `lines` lines, cut with an ellipsis if it is longer.

    Line breaks and control characters become spaces; `size` is the font's, in points.
    """
    rest = drawable(text)
    result: list[str] = []
    while rest and len(result) < lines:
        last = len(result) == lines - 1
        line = _cut(rest, width_in, size) if last else _first_line(rest, width_in, size)
        result.append(line.strip())
        rest = "" if last else rest[len(line) :].lstrip()
    return "\n".join(result)


def width_in(text: str, size: float) -> float:
    """The width of a line in inches."""
    return _width(drawable(text), size)


def _first_line(text: str, width: float, size: float) -> str:
    length = _fitting(text, width, size)
    if length == len(text):
        return text
    # The last place to break, unless it leaves the line nearly empty.
    ends = [k + 1 for k in range(length) if text[k] in _BREAKS and k + 1 > length // 3]
    if text[length] == " ":
        ends.append(length)
    return text[: max(ends, default=length)]


def _cut(text: str, width: float, size: float) -> str:
    if _fitting(text, width, size) == len(text):
        return text
    return text[: _fitting(text, width, size, CUT)].rstrip() + CUT


def _fitting(text: str, width: float, size: float, end: str = "") -> int:
    """Number of characters that fit, at least one."""
    left = width - _width(end, size)
    for length, letter in enumerate(text):
        left -= _width(letter, size)
        if left < 0:
            return max(length, 1)
    return len(text)


def drawable(text: str) -> str:
    """Joins the text to one line, with ABSENT for what the font lacks."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return "".join(c if _font().get_char_index(ord(c)) else ABSENT for c in " ".join(words))


def _width(text: str, size: float) -> float:
    return _WIDER * size / 72 * sum(map(_advance, text))


@functools.cache
def _advance(letter: str) -> float:
    """Distance from a letter to the next, in units of the font's size."""
    _font().set_size(100, 72)
    glyph = _font().load_char(ord(letter), flags=LoadFlags.NO_HINTING)
    return glyph.linearHoriAdvance / 65536 / 100


@functools.cache
def _font() -> FT2Font:
    return font_manager.get_font(FONT_FILE)


MARGIN_IN = 0.12
GAP_IN, WIDE_GAP_IN = 0.07, 0.14  # between tiles, and more between groups of them
BELOW_IN = 0.09  # below a tile's text
LINE_IN = 1.25 * style.SMALL / 72  # height of a line of small text
TITLE_IN, NOTE_IN = 0.3, 0.22
BAR_IN = 0.62  # height of a colour bar with its label
LEAST_IN = 2.6  # width of a sheet that has a title or a colour bar


def columns() -> int:
    """Number of tiles in a row of photos."""
    return 3 if style.is_narrow() else 6


class Sheet:
    """A figure of tiles of the same size, row by row; tiles are filled by `show`.

    Args:
      rows, columns: number of tiles.
      height_by_width: aspect of a tile's picture.
      title, note: texts at the top, each cut to one line.
      lines: most lines of text below each tile.
      captions: arguments of later calls of `caption`, and over how many tiles, if no more lines
        shall have room than these need.
      headings: leaves room for `heading`.
      gaps: indices of columns in front of which there is more space.
      most_in: largest width of a tile.
      left, below: further space beside the tiles and below them, in inches.
      bar: leaves room for `colour_bar`.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        height_by_width: float = 1.0,
        title: str = "",
        note: str = "",
        lines: int = 0,
        captions: tuple[Sequence[str], int] | None = None,
        headings: bool = False,
        gaps: Sequence[int] = (),
        most_in: float = 1.8,
        left: float = 0.0,
        below: float = 0.0,
        bar: bool = False,
    ):
        canvas = style.canvas()
        title, shown_note = (title, note) if canvas.titled else ("", "")
        widest = canvas.width_in - 2 * MARGIN_IN
        spaces = GAP_IN * (columns - 1) + WIDE_GAP_IN * len(gaps)
        self.tile = min((widest - left - spaces) / columns, most_in)
        self.tile_height = self.tile * height_by_width
        self.lines = lines if captions is None else self._needed(*captions, lines)
        self.row_height = self.tile_height + self.lines * LINE_IN
        self.row_height += BELOW_IN if self.lines else GAP_IN
        content = self.tile * columns + spaces + left
        # A long title may widen a sheet of few tiles, up to a page.
        wanted = [width_in(t, s) for t, s in ((title, style.TITLE), (shown_note, style.SMALL))]
        least = LEAST_IN if title or shown_note or bar else 0.0
        self.width = max(content, min(max(*wanted, least), widest)) + 2 * MARGIN_IN
        self.top = MARGIN_IN + (TITLE_IN if title else 0) + (NOTE_IN if shown_note else 0)
        self.top += LINE_IN + 0.05 if headings else 0
        self.bar_height = BAR_IN if bar else 0.0
        self.height = self.top + rows * self.row_height + below + MARGIN_IN + self.bar_height
        self.lefts = [
            MARGIN_IN + left + k * (self.tile + GAP_IN) + WIDE_GAP_IN * sum(g <= k for g in gaps)
            for k in range(columns)
        ]
        self.figure: Figure = style.blank(self.width, self.height, layout=None)
        self.figure.set_label(note)
        self._write_title(title, shown_note)

    def show(self, row: int, column: int, picture: np.ndarray, **how: Any) -> Axes:
        """Fills a tile with a picture [H, W, 3] or numbers [H, W]; `how`: arguments of imshow."""
        axes = self.axes(row, column)
        axes.imshow(picture, aspect="auto", **how)
        return axes

    def axes(self, row: int, column: int) -> Axes:
        """Empty axes in a tile, without ticks."""
        top = self.top + row * self.row_height
        axes = self._at(self.lefts[column], top, self.tile, self.tile_height)
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
        axes.spines[:].set_visible(False)
        return axes

    def caption(self, row: int, column: int, text: str, *, over: int = 1) -> None:
        """Writes text below `over` tiles, cut to the lines that have room."""
        top = self.top + row * self.row_height + self.tile_height + 0.025
        shown = _wrapped(text, self._over(over), self.lines)
        centre = self.lefts[column] + self._over(over) / 2
        self._text(centre, top, shown, style.SMALL, style.INK, "center")

    def heading(self, column: int, text: str, *, over: int = 1) -> None:
        """Writes text above a column of tiles."""
        shown = fit(text, self._over(over), style.SMALL)
        centre = self.lefts[column] + self._over(over) / 2
        self._text(centre, self.top - LINE_IN - 0.05, shown, style.SMALL, style.INK, "center")

    def colour_bar(
        self, cmap: str, low: float, high: float, label: str, *, log: bool = False
    ) -> None:
        """Adds a colour bar at the bottom, with ticks and the quantity and unit."""
        width = min(3.4, self.width - 2 * MARGIN_IN - 0.4)
        top = self.height - MARGIN_IN - BAR_IN + 0.12
        axes = self._at((self.width - width) / 2, top, width, 0.11)
        norm = (LogNorm if log else Normalize)(low, high)
        bar = self.figure.colorbar(ScalarMappable(norm, cmap), cax=axes, orientation="horizontal")
        if log:
            style.plain_log_ticks(axes.xaxis)
        bar.outline.set_visible(False)  # type: ignore[operator]
        shown = fit(label, self.width - 2 * MARGIN_IN, style.SMALL)
        bar.set_label(shown, size=style.SMALL, labelpad=2)

    def _needed(self, texts: Sequence[str], over: int, lines: int) -> int:
        width = self._over(over)
        return max((_wrapped(text, width, lines).count("\n") + 1 for text in texts), default=0)

    def _over(self, tiles: int) -> float:
        """Width of `tiles` tiles side by side."""
        return tiles * self.tile + (tiles - 1) * GAP_IN

    def _write_title(self, title: str, note: str) -> None:
        room = self.width - 2 * MARGIN_IN + 1e-6  # the sheet may be as wide as this text
        down = MARGIN_IN
        for text, size, height, colour in (
            (title, style.TITLE, TITLE_IN, style.INK),
            (note, style.SMALL, NOTE_IN, style.MUTED),
        ):
            if text:
                self._text(MARGIN_IN, down, fit(text, room, size), size, colour, "left")
                down += height

    def _at(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def _text(
        self, x: float, top: float, text: str, size: float, colour: str, side: str
    ) -> None:  # fmt: skip
        for k, line in enumerate(text.split("\n")):
            # On its baseline: from the top, lines with and without descenders would differ.
            down = top + (0.95 + 1.25 * k) * size / 72
            place = x / self.width, 1 - down / self.height
            self.figure.text(*place, line, size=size, color=colour, ha=side, va="baseline")


class PhotoSheet(Sheet):
    """Photos [B, H, W, 3] with captions, each with `beside` more tiles on its right."""

    def __init__(
        self,
        photos: np.ndarray,
        captions: Sequence[str],
        *,
        beside: int,
        lines: int = 2,
        **how: Any,
    ):
        self._wide = 1 + beside
        self.across = max(1, min(columns() // self._wide, len(photos)))
        super().__init__(
            math.ceil(len(photos) / self.across),
            self.across * self._wide,
            height_by_width=photos.shape[1] / photos.shape[2],
            captions=(captions, self._wide),
            gaps=range(self._wide, self.across * self._wide, self._wide),
            lines=lines,
            **how,
        )
        for k, photo in enumerate(photos):
            self.show(*self.place(k), style.displayed(photo))
            self.caption(*self.place(k), captions[k], over=self._wide)

    def place(self, k: int, beside: int = 0) -> tuple[int, int]:
        """Row and column of photo k, or of the tile `beside` places right of it."""
        row, column = divmod(k, self.across)
        return row, column * self._wide + beside


def _wrapped(text: str, width_in: float, lines: int) -> str:
    """Wraps each line of a text, and cuts all to `lines` lines."""
    parts = [fit(part, width_in, style.SMALL, lines=lines) for part in text.split("\n")]
    all_lines = "\n".join(parts).split("\n")
    if 0 < lines < len(all_lines):
        last = f"{all_lines[lines - 1].removesuffix(CUT)}{CUT}"
        all_lines[lines - 1] = fit(last, width_in, style.SMALL)
    return "\n".join(all_lines[:lines])
