"""Elements of a chart as inline SVG."""

from collections.abc import Sequence
from html import escape

from vit_jax.draw import scales
from vit_jax.draw.scales import Axes


def picture(
    title: str,
    size: tuple[int, int],
    axes: Axes,
    behind: Sequence[str],
    before: Sequence[str] = (),
) -> str:
    """An <svg> with elements behind and before the line of the horizontal axis.

    `size` is width and height, in about CSS pixels, as are the edges of `axes`.
    """
    width, height = size
    return "\n".join(
        [
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            *behind,
            f'<line class="axis" x1="{axes.left}" x2="{axes.right}" '
            f'y1="{axes.bottom}" y2="{axes.bottom}"/>',
            *before,
            "</svg>",
        ]
    )


def grid(axes: Axes, ticks: Sequence[float], *, percent: bool = False) -> list[str]:
    """Horizontal lines with their values."""
    parts = []
    for tick, label in zip(ticks, scales.labels(ticks, percent=percent), strict=True):
        y, left = axes.y(tick), axes.left
        parts += [
            f'<line class="grid" x1="{left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>',
        ]
    return parts


def values_below(axes: Axes, ticks: Sequence[float]) -> list[str]:
    """Values of the horizontal axis."""
    labels = scales.labels(ticks)
    return [label_below(axes, axes.x(t), text) for t, text in zip(ticks, labels, strict=True)]


def label_below(axes: Axes, x: float, text: str) -> str:
    """A text below the horizontal axis."""
    return f'<text x="{x:.1f}" y="{axes.bottom + 16}" text-anchor="middle">{text}</text>'
