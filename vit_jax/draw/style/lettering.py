"""Text from data, such as names of classes and files, made to fit the place that it has."""

from __future__ import annotations

import functools

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font, LoadFlags

CUT = "…"
ABSENT = "\N{WHITE SQUARE}"  # for what the font has no picture of
_WIDER = 1.03  # letters are drawn on whole pixels
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
    return _width(_drawable(text), size)


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
    left = width - _width(end, size)
    for length, letter in enumerate(text):
        left -= _width(letter, size)
        if left < 0:
            return max(length, 1)
    return len(text)


def _drawable(text: str) -> str:
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return "".join(c if _font().get_char_index(ord(c)) else ABSENT for c in " ".join(words))


def _width(text: str, size: float) -> float:
    return _WIDER * size / 72 * sum(map(_advance, text))


@functools.cache
def _advance(letter: str) -> float:
    """From one letter to the next, by the font's size."""
    _font().set_size(100, 72)
    glyph = _font().load_char(ord(letter), flags=LoadFlags.NO_HINTING)
    return glyph.linearHoriAdvance / 65536 / 100


@functools.cache
def _font() -> FT2Font:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans"))
