"""Text from data, such as names of classes and files, made to fit the place that it has."""

from __future__ import annotations

import functools

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

CUT = "…"
ABSENT = "\N{WHITE SQUARE}"  # for what the font has no picture of
NARROWEST = 0.25  # of the font's size: all letters are wider
_BREAKS = " -_/.,"  # after these a line may end


def fit(text: str, width_in: float, size: float, *, lines: int = 1) -> str:
    """The text in at most so many lines of that width, cut with an ellipsis if it is longer.

    Args:
      text: any; line breaks and control characters become spaces.
      width_in: inches.
      size: of the font, in points.
    """
    rest = _drawable(text)
    result: list[str] = []
    while rest and len(result) < lines:
        last = len(result) == lines - 1
        line = _cut(rest, width_in, size) if last else _first_line(rest, width_in, size)
        result.append(line.strip())
        rest = "" if last else rest[len(line) :].lstrip()
    return "\n".join(result)


def width_in(text: str, size: float) -> float:
    """How wide a line is, in inches."""
    font = font_manager.FontProperties(family=["DejaVu Sans"], size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


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
    """How many characters fit, at least one."""
    low, high = 1, min(len(text), int(width * 72 / (NARROWEST * size)) + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if width_in(text[:middle] + end, size) <= width:
            low = middle
        else:
            high = middle - 1
    return low


def _drawable(text: str) -> str:
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return "".join(c if _font().get_char_index(ord(c)) else ABSENT for c in " ".join(words))


@functools.cache
def _font() -> FT2Font:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans"))
