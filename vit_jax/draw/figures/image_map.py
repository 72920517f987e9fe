"""A map of images by their features, with thumbnails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.draw.style import lettering, look, palette
from vit_jax.draw.style.look import displayed

MOST_CLASSES = len(palette.SERIES)  # with a colour and a marker of their own
SIDES_IN = (0.62, 0.3)  # of a thumbnail, for few images and for many
AROUND_IN = 0.32  # left and right of the map
MAP_IN = (look.WIDTH_IN - 2 * AROUND_IN, 5.4)
TOP_IN, BELOW_IN, LEGEND_IN, COLUMNS = 0.7, 0.35, 0.2, 3
OTHER = "other classes"
# Distances from its point, in thumbnails, at which a thumbnail looks for room.
REACH = (0.0, 0.6, 1.1, 1.7)
DIRECTIONS = 12


@look.styled
def image_map(
    points: np.ndarray,
    photos: np.ndarray,
    *,
    labels: Sequence[str] | None = None,
    axes_names: tuple[str, str] = ("first component (no unit)", "second component (no unit)"),
    title: str = "Images by their features",
) -> Figure:
    """Every image as a point, and beside it as a thumbnail if there is room, joined by a line.

    Args:
      points: [N, 2].
      photos: [N, H, W, 3], uint8 or from 0 to 1.
      labels: the class of each, for colours and markers: of the 7 most frequent, and of others.
      axes_names: with the unit, where there is one.
      title: above all.
    """
    groups = _groups(labels, len(points))
    legend = 0.0 if labels is None else LEGEND_IN * -(-len(groups) // COLUMNS) + 0.1
    height = TOP_IN + MAP_IN[1] + BELOW_IN + legend
    figure = look.blank(look.WIDTH_IN, height, layout=None)
    across, up = MAP_IN[0] / look.WIDTH_IN, MAP_IN[1] / height
    axes = figure.add_axes((AROUND_IN / look.WIDTH_IN, (BELOW_IN + legend) / height, across, up))
    places = _in_inches(points)
    axes.set(xlim=(0, MAP_IN[0]), ylim=(0, MAP_IN[1]), xticks=[], yticks=[])
    axes.set_xlabel(axes_names[0])
    axes.set_ylabel(axes_names[1])
    colours: dict[int, str] = {}
    for index, (name, members) in enumerate(groups.items()):
        colour, marker = (palette.MUTED, ".") if name == OTHER else palette.series(index)
        colours |= dict.fromkeys(members, colour)
        label = lettering.fit(name, 1.9, look.SMALL)
        x, y = places[members].T
        axes.scatter(x, y, s=16, color=colour, marker=marker, linewidth=0, label=label, zorder=5)
    drawn = _thumbnails(axes, places, photos, colours)
    top = 1 - 0.12 / height
    figure.text(0.018, top, title, size=look.TITLE, va="top")
    note = f"{len(points):,} images, {drawn:,} of them with a thumbnail"
    figure.text(0.018, top - 0.29 / height, note, size=look.SMALL, color=palette.MUTED, va="top")
    if labels is not None:
        figure.legend(loc="lower center", ncols=COLUMNS, scatterpoints=1, markerscale=1.4)
    return figure


def _in_inches(points: np.ndarray) -> np.ndarray:
    """The points in the map, with a margin, with the longer side of their range as its own."""
    room = np.array(MAP_IN) - 2 * 0.2
    low, high = points.min(axis=0), points.max(axis=0)
    scale = room / np.maximum(high - low, max(float(np.max(high - low)) * 1e-6, 1e-12))
    return (points - (low + high) / 2) * scale + np.array(MAP_IN) / 2


def _groups(labels: Sequence[str] | None, number: int) -> dict[str, list[int]]:
    """Indices by label, the most frequent first; those of rare ones together as OTHER."""
    if labels is None:
        return {"": list(range(number))}
    members: dict[str, list[int]] = {}
    for k, label in enumerate(labels):
        members.setdefault(label, []).append(k)
    ordered = sorted(members, key=lambda label: (-len(members[label]), label))
    if len(ordered) <= MOST_CLASSES:
        return {label: members[label] for label in ordered}
    rest = sorted(k for label in ordered[MOST_CLASSES:] for k in members[label])
    return {label: members[label] for label in ordered[:MOST_CLASSES]} | {OTHER: rest}


def _thumbnails(
    axes: Axes, places: np.ndarray, photos: np.ndarray, colours: dict[int, str]
) -> int:  # fmt: skip
    """Draws those that find room, framed in the colour of their class; returns how many."""
    longer = float(np.interp(len(places), [30, 300], SIDES_IN))
    height, width = photos.shape[1:3]
    shape = np.array([width, height]) * longer / max(height, width)
    placed = np.empty((0, 2))
    for k, point in enumerate(places):
        for centre in _around(point, shape):
            if (np.abs(placed - centre) < 1.06 * shape).all(axis=1).any():
                continue
            placed = np.vstack([placed, centre])
            left, bottom = centre - shape / 2
            box = (left, left + shape[0], bottom, bottom + shape[1])
            axes.plot(*np.stack([point, centre]).T, color=colours[k], lw=0.8, zorder=2)
            axes.imshow(displayed(photos[k]), extent=box, aspect="auto", zorder=3)
            frame = Rectangle((left, bottom), shape[0], shape[1], fill=False, lw=1.6, zorder=4)
            frame.set_edgecolor(colours[k])
            axes.add_patch(frame)
            break
    axes.set(xlim=(0, MAP_IN[0]), ylim=(0, MAP_IN[1]))
    return len(placed)


def _around(point: np.ndarray, shape: np.ndarray) -> Iterator[np.ndarray]:
    """Centres for a thumbnail near a point, inside the map, the nearest first."""
    for reach in REACH:
        for angle in np.arange(DIRECTIONS if reach else 1) * 2 * np.pi / DIRECTIONS:
            centre = point + reach * shape * [np.cos(angle), np.sin(angle)]
            yield np.clip(centre, shape / 2 + 0.03, np.array(MAP_IN) - shape / 2 - 0.03)
