"""Axes of a chart as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from vit_jax.draw import scales
from vit_jax.draw.scales import Scale


class Axes(NamedTuple):
    """A horizontal and a vertical axis, and where they are.

    Attributes:
      across, up: what the axes show.
      size: (width, height) of the picture, in about CSS pixels, as all below.
      left, right, top, bottom: edges of the area between the axes.
    """

    across: Scale
    up: Scale
    size: tuple[int, int]
    left: int
    right: int
    top: int
    bottom: int

    def x(self, value: float) -> float:
        """Distance from the left edge of the picture."""
        return self.left + (self.right - self.left) * self.across.place(value)

    def y(self, value: float) -> float:
        """Distance from its top edge."""
        return self.bottom - (self.bottom - self.top) * self.up.place(value)

    def grid(self, ticks: Sequence[float], *, percent: bool = False) -> list[str]:
        """Horizontal lines with their values."""
        parts = []
        for tick, label in zip(ticks, scales.labels(ticks, percent=percent), strict=True):
            y, x1, x2 = self.y(tick), self.left, self.right
            parts += [
                f'<line class="grid" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>',
                f'<text x="{x1 - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>',
            ]
        return parts

    def values_below(self, ticks: Sequence[float]) -> list[str]:
        """Values of the horizontal axis."""
        labels = scales.labels(ticks)
        return [self.label_below(self.x(t), text) for t, text in zip(ticks, labels, strict=True)]

    def label_below(self, x: float, text: str) -> str:
        """A text below the horizontal axis."""
        return f'<text x="{x:.1f}" y="{self.bottom + 16}" text-anchor="middle">{text}</text>'

    def svg(self, title: str, behind: Sequence[str], before: Sequence[str] = ()) -> str:
        """The picture, with elements behind and before the line of the horizontal axis."""
        width, height = self.size
        start = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        axis = (
            f'<line class="axis" x1="{self.left}" x2="{self.right}" '
            f'y1="{self.bottom}" y2="{self.bottom}"/>'
        )
        return "\n".join([start, *behind, axis, *before, "</svg>"])
