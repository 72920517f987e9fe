"""Pictures of a data set as inline SVG: bars for how values are spread, a curve of the classes."""

from collections.abc import Callable, Sequence
from html import escape

from vit_jax.draw import scales, svg
from vit_jax.draw.scales import Axes, Scale

# In the units of the picture, which are about CSS pixels.
SIZE = 420, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 412, 10, 172
POINTS = 400  # of a curve

Bin = tuple[float, float, int]


def bars(title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]) -> str:
    """A <figure> of counts; `label` writes the edge of a bin."""
    highest = max([count for _, _, count in bins], default=0)
    axes = _axes(Scale(0, max(len(bins), 1)), Scale(0, highest * 1.05 or 1))
    parts = _grid(axes)
    width = axes.x(1) - axes.x(0)
    every = max(1, -(-len(bins) // 6))
    for i, (low, high, count) in enumerate(bins):
        x, y = axes.x(i), axes.y(count)
        hint = f"{label(low)} to {label(high)}: {count:,} images"
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(width - 2, 0.5):.1f}" '
            f'height="{BOTTOM - y:.1f}"><title>{escape(hint)}</title></rect>'
        )
        if i % every == 0:
            parts.append(svg.label_below(axes, x, label(low)))
    return _figure(title, note, svg.picture(title, SIZE, axes, parts))


def curve(title: str, note: str, values: Sequence[int]) -> str:
    """A <figure> of numbers of examples, the largest first; zeros are on the axis."""
    values = sorted(values, reverse=True)
    filled = [value for value in values if value]
    log = bool(filled) and filled[0] / filled[-1] >= 30
    last = len(values) - 1
    up = scales.fit(filled or [1], start=None if log else 0, end=None, log=log)
    axes = _axes(Scale(0, max(last, 1)), up)
    chosen = sorted({round(i * last / POINTS) for i in range(POINTS + 1)}) if values else []
    points = " ".join(
        f"{axes.x(i):.1f},{axes.y(values[i]) if values[i] else BOTTOM:.1f}" for i in chosen
    )
    parts = [
        *_grid(axes),
        *svg.values_below(axes, [tick for tick in axes.across.ticks(6) if tick == int(tick)]),
        f'<polyline class="curve" points="{points}"/>',
    ]
    return _figure(
        title, note + (", log scale" if log else ""), svg.picture(title, SIZE, axes, parts)
    )


def _axes(across: Scale, up: Scale) -> Axes:
    return Axes(across, up, LEFT, RIGHT, TOP, BOTTOM)


def _grid(axes: Axes) -> list[str]:
    """Lines at whole numbers."""
    return svg.grid(axes, [tick for tick in axes.up.ticks(5) if axes.up.log or tick == int(tick)])


def _figure(title: str, note: str, picture: str) -> str:
    return (
        f'<figure><figcaption><b>{escape(title)}</b><span class="note">{escape(note)}</span>'
        f"</figcaption>\n{picture}</figure>"
    )
