"""Pictures of a data set as inline SVG: bars for how values are spread, a curve of the classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from vit_jax.draw import scales
from vit_jax.draw.scales import Scale

# In the units of the picture, which are about CSS pixels.
WIDTH, HEIGHT = 420, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 412, 10, 172
POINTS = 400  # of a curve

Bin = tuple[float, float, int]


def bars(title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]) -> str:
    """A <figure> of counts; `label` writes the edge of a bin."""
    up = Scale(0, max([count for _, _, count in bins], default=0) * 1.05 or 1)
    width = (RIGHT - LEFT) / max(len(bins), 1)
    parts = _rows(up)
    every = max(1, -(-len(bins) // 6))
    for i, (low, high, count) in enumerate(bins):
        x, y = LEFT + i * width, _y(up, count)
        told = f"{label(low)} to {label(high)}: {count:,} images"
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(width - 2, 0.5):.1f}" '
            f'height="{BOTTOM - y:.1f}"><title>{escape(told)}</title></rect>'
        )
        if i % every == 0:
            parts.append(_below(x, label(low)))
    return _figure(title, note, parts)


def curve(title: str, note: str, values: Sequence[int]) -> str:
    """A <figure> of numbers of examples, the largest first; zeros lie on the axis."""
    values = sorted(values, reverse=True)
    filled = [value for value in values if value]
    log = bool(filled) and filled[0] / filled[-1] >= 30
    up = scales.fit(filled or [1], start=None if log else 0, end=None, log=log)
    last = len(values) - 1
    across = Scale(0, max(last, 1))
    chosen = sorted({round(i * last / POINTS) for i in range(POINTS + 1)}) if values else []
    points = " ".join(
        f"{LEFT + (RIGHT - LEFT) * across.place(i):.1f},"
        f"{_y(up, values[i]) if values[i] else BOTTOM:.1f}"
        for i in chosen
    )
    ticks = [tick for tick in across.ticks(6) if tick == int(tick)]
    parts = _rows(up)
    for tick, text in zip(ticks, scales.labels(ticks), strict=True):
        parts.append(_below(LEFT + (RIGHT - LEFT) * across.place(tick), text))
    parts.append(f'<polyline class="curve" points="{points}"/>')
    return _figure(title, note + (", log scale" if log else ""), parts)


def _figure(title: str, note: str, parts: Sequence[str]) -> str:
    return (
        f'<figure><figcaption><b>{escape(title)}</b><span class="note">{escape(note)}</span>'
        f'</figcaption>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">\n'
        + "\n".join(parts)
        + f'\n<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>\n'
        "</svg></figure>"
    )


def _rows(up: Scale) -> list[str]:
    """Horizontal lines and what stands at them."""
    ticks = [tick for tick in up.ticks(5) if up.log or tick == int(tick)]
    parts = []
    for tick, text in zip(ticks, scales.labels(ticks), strict=True):
        y = _y(up, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
    return parts


def _below(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{text}</text>'


def _y(up: Scale, value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * up.place(value)
