"""Pictures of features: colours of patches, neighbours, a map of images, CKA of layers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.draw import style, tiles
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.tiles import PhotoSheet, Sheet
from vit_jax.models.observe import chunks
from vit_jax.probes import cka, neighbours, principal
from vit_jax.tools.look.visualize.photos import Outputs, Photos

TITLE = "Its features"
NEAREST, QUERIES = 5, 6  # the most neighbours of an image, and images that have theirs shown
NARROW_NEAREST = 3  # on a phone
AXES = {
    "pca": ("first component (no unit)", "second component (no unit)"),
    "tsne": ("t-SNE, first axis (no unit)", "t-SNE, second axis (no unit)"),
    "umap": ("UMAP, first axis (no unit)", "UMAP, second axis (no unit)"),
}


def findings(
    model: Any,
    shown: Photos,
    outputs: Outputs,
    *,
    names: Sequence[str],
    labels: Sequence[str] | None,
    method: str,
) -> Findings:
    """The pictures of a model's features.

    Args:
      shown: a few photos, whose patches are shown.
      outputs: what it makes of N images.
      names: of these N.
      labels: their classes, for colours; None: not known.
      method: how they become a map: see probes/principal.py.
    """
    pictures, notes = [_colours(model, shown)], []
    number = len(outputs.features)
    if number > 1:
        pictures.append(_neighbours(outputs, names))
    if number >= principal.LEAST_ON_MAP:
        pictures.append(_map(outputs, labels, method))
    if len(shown) >= cka.LEAST:
        pictures.append(_layer_similarity(model, shown.stacked))
    else:
        notes.append(f"CKA of layers takes {cka.LEAST} images or more.")
    return Findings(Section(TITLE, pictures, " ".join(notes)), {})


def _colours(model: Any, shown: Photos) -> Picture:
    compute = lambda model, x: model.tokens(x).astype(np.float32)  # after the last norm
    tokens = chunks.compute(compute, model, shown.stacked)
    grid = model.spec.token_layout(model.preprocess.image_size).grid
    patches = tokens[:, -grid[0] * grid[1] :].reshape(len(tokens), *grid, -1)
    colours = principal.colours(patches)
    note = "What the last layer makes of each patch: equal colours mean alike."
    draw = functools.partial(draw_features, shown.pixels(shown.stacked), colours, shown.names)
    return Picture("features", "Features of patches", note, draw)


def _neighbours(outputs: Outputs, names: Sequence[str]) -> Picture:
    number = len(outputs.features)
    queries = np.linspace(0, number - 1, min(QUERIES, number)).round().astype(int).tolist()
    found = neighbours.nearest(outputs.features, queries, min(NEAREST, number - 1))
    draw = functools.partial(
        draw_neighbours, outputs.thumbnails, queries, found.indices, found.similarities, names
    )
    note = "Each image and those nearest to it by the cosine of what the head sees."
    return Picture("neighbours", "Nearest neighbours", note, draw)


def _map(outputs: Outputs, labels: Sequence[str] | None, method: str) -> Picture:
    points = principal.map_2d(outputs.features, method)
    draw = functools.partial(
        draw_map, points, outputs.thumbnails, labels=labels, axes_names=AXES[method]
    )
    note = f"Every image by its features, in two dimensions by {method.upper()}."
    return Picture("map", "A map of images", note, draw)


def layer_tokens(model: Any, inputs: np.ndarray) -> list[np.ndarray]:
    """Tokens after each block of a ViT, or each unit of a ResNet, of norm 1: [B, ..., D] each.

    As they are, a few tokens of many times the others' norm would decide what is alike.
    """
    depth = model.spec.depth if hasattr(model.spec, "depth") else sum(model.spec.units)

    def compute(model: Any, images: jax.Array) -> Any:
        found = [x.astype(np.float32) for x in model.tokens(images, layers=tuple(range(depth)))]
        norms = (jnp.linalg.norm(x, axis=-1, keepdims=True) for x in found)
        return tuple(x / jnp.maximum(norm, 1e-12) for x, norm in zip(found, norms, strict=True))

    return list(chunks.compute(compute, model, inputs))


def compare_models(
    name: str, one: tuple[Any, np.ndarray], other: tuple[Any, np.ndarray]
) -> Picture:
    """CKA between the layers of two models, each with the same images as it takes them.

    `name` is what the other model is called. UserError for fewer than 4 images.
    """
    rows, columns = layer_tokens(*one), layer_tokens(*other)
    alike = cka.linear_cka(rows, columns)
    titles = [[str(layer + 1) for layer in range(len(of))] for of in (rows, columns)]
    note = f"unbiased, {len(one[1]):,} images"
    draw = functools.partial(
        draw_cka, alike, *titles, models=("layer", f"layer of {name}"), note=note
    )
    return Picture(
        f"cka_with_{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('_')}",
        f"Similarity with {name}",
        "How alike the tokens of each layer are to those of each layer of the other model.",
        draw,
    )


def _layer_similarity(model: Any, inputs: np.ndarray) -> Picture:
    of = layer_tokens(model, inputs)
    titles = [str(layer + 1) for layer in range(len(of))]
    found = f"unbiased, {len(inputs):,} images, every token with norm 1"
    draw = functools.partial(draw_cka, cka.linear_cka(of), titles, note=found)
    note = "How alike the tokens of two layers are (arXiv 1905.00414, 2010.15327); 1 is the same."
    return Picture("cka", "Similarity of layers", note, draw)


@style.styled
def draw_features(photos: np.ndarray, colours: np.ndarray, names: Sequence[str]) -> Figure:
    """Each photo [B, H, W, 3] and the colours of its patches [B, R, C, 3], from 0 to 1."""
    sheet = PhotoSheet(
        photos,
        names,
        beside=1,
        title="Features of patches as colours",
        note="the first three principal components, the same in all images, as red, green, blue",
    )
    for k, patches in enumerate(colours):
        sheet.show(*sheet.place(k, 1), style.displayed(patches))
    return sheet.figure


@style.styled
def draw_neighbours(
    photos: np.ndarray,
    queries: Sequence[int],
    indices: np.ndarray,
    similarities: np.ndarray,
    names: Sequence[str],
) -> Figure:
    """Each query, and behind it its nearest images with their similarity.

    Args:
      photos: [N, H, W, 3], uint8 or from 0 to 1.
      queries: indices of Q of them.
      indices: [Q, k] of their neighbours among the photos, nearest first.
      similarities: [Q, k], cosines.
      names: of all N.
    """
    k = min(indices.shape[1], NARROW_NEAREST if style.is_narrow() else NEAREST)
    indices, similarities = indices[:, :k], similarities[:, :k]
    captions = [
        [f"{similarity:.3f}\n{names[i]}" for i, similarity in zip(row, values, strict=True)]
        for row, values in zip(indices, similarities, strict=True)
    ]
    sheet = Sheet(
        len(queries),
        1 + k,
        height_by_width=photos.shape[1] / photos.shape[2],
        title="Nearest neighbours in feature space",
        note="the cosine similarity of features below each",
        lines=3,
        captions=([*(names[q] for q in queries), *(text for row in captions for text in row)], 1),
        headings=True,
        gaps=(1,),
        most_in=1.3,
    )
    sheet.heading(0, "image")
    sheet.heading(1, "nearest", over=k)
    for row, query in enumerate(queries):
        sheet.show(row, 0, style.displayed(photos[query]))
        sheet.caption(row, 0, names[query])
        for column, index in enumerate(indices[row], start=1):
            sheet.show(row, column, style.displayed(photos[index]))
            sheet.caption(row, column, captions[row][column - 1])
    return sheet.figure


MOST_CLASSES = len(style.SERIES)  # with a colour and a marker of their own
SIDES_IN = (0.62, 0.3)  # of a thumbnail, for few images and for many
AROUND_IN = 0.32  # left and right of the map
INSIDE_IN = 0.1  # of a thumbnail, from the axes
TOP_IN, BELOW_IN, LEGEND_IN = 0.7, 0.35, 0.165
# On a page, and on a phone:
LEGEND_COLUMN_IN = (2.2, 1.4)
HEIGHT_BY_WIDTH = (0.82, 1.15)
THUMBNAIL = (1.0, 0.65)  # of SIDES_IN
OTHER = "other classes"
# Distances from its point, in thumbnails, at which a thumbnail looks for room.
REACH = (0.0, 0.6, 1.1, 1.7)
DIRECTIONS = 12


@style.styled
def draw_map(
    points: np.ndarray,
    photos: np.ndarray,
    *,
    labels: Sequence[str] | None = None,
    axes_names: tuple[str, str] = ("first component (no unit)", "second component (no unit)"),
) -> Figure:
    """Every image as a point, and beside it as a thumbnail if there is room, joined by a line.

    Args:
      points: [N, 2].
      photos: [N, H, W, 3], uint8 or from 0 to 1.
      labels: the class of each, for colours and markers: of the 7 most frequent, and of others.
      axes_names: with the unit, where there is one.
    """
    groups = _groups(labels, len(points))
    width, titled = style.canvas()
    column, high = LEGEND_COLUMN_IN[style.is_narrow()], HEIGHT_BY_WIDTH[style.is_narrow()]
    columns = max(1, int(width / column))
    legend = 0.0 if labels is None else LEGEND_IN * -(-len(groups) // columns) + 0.1
    size = np.array([width - 2 * AROUND_IN, high * (width - 2 * AROUND_IN)])
    height = (TOP_IN if titled else 0.1) + size[1] + BELOW_IN + legend
    figure = style.blank(width, height, layout=None)
    corner = AROUND_IN / width, (BELOW_IN + legend) / height
    axes = figure.add_axes((*corner, size[0] / width, size[1] / height))
    places = _in_inches(points, size)
    axes.set(xlim=(0, size[0]), ylim=(0, size[1]), xticks=[], yticks=[])
    axes.set_xlabel(axes_names[0])
    axes.set_ylabel(axes_names[1])
    colours: dict[int, str] = {}
    for index, (name, members) in enumerate(groups.items()):
        colour, marker = (style.MUTED, ".") if name == OTHER else style.series(index)
        colours |= dict.fromkeys(members, colour)
        label = tiles.fit(name, column - 0.3, style.SMALL)
        x, y = places[members].T
        axes.scatter(x, y, s=16, color=colour, marker=marker, linewidth=0, label=label, zorder=5)
    num_thumbnails = _thumbnails(axes, places, photos, colours, size)
    note = f"{len(points):,} images, {num_thumbnails:,} of them with a thumbnail"
    figure.set_label(f"{len(points):,} images; where there is room, with a thumbnail")
    if titled:
        top = 1 - 0.12 / height
        figure.text(0.018, top, "Images by their features", size=style.TITLE, va="top")
        figure.text(0.018, top - 0.29 / height, note, size=style.SMALL, color=style.MUTED, va="top")
    if labels is not None:
        figure.legend(loc="lower center", ncols=columns, scatterpoints=1, markerscale=1.4)
    return figure


def _in_inches(points: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The points in a map of that size, with a margin, spread over all of it."""
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (size - 2 * 0.2) / np.maximum(high - low, max(float(np.max(high - low)) * 1e-6, 1e-12))
    return (points - (low + high) / 2) * scale + size / 2


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
    axes: Axes,
    places: np.ndarray,
    photos: np.ndarray,
    colours: dict[int, str],
    size: np.ndarray,
) -> int:
    """Draws those that find room, framed in the colour of their class; returns how many."""
    longer = float(np.interp(len(places), [30, 300], SIDES_IN)) * THUMBNAIL[style.is_narrow()]
    height, width = photos.shape[1:3]
    shape = np.array([width, height]) * longer / max(height, width)
    placed = np.empty((0, 2))
    for k, point in enumerate(places):
        for centre in _around(point, shape, size):
            if (np.abs(placed - centre) < 1.06 * shape).all(axis=1).any():
                continue
            placed = np.vstack([placed, centre])
            left, bottom = centre - shape / 2
            box = (left, left + shape[0], bottom, bottom + shape[1])
            axes.plot(*np.stack([point, centre]).T, color=colours[k], lw=0.8, zorder=2)
            axes.imshow(style.displayed(photos[k]), extent=box, aspect="auto", zorder=3)
            frame = Rectangle((left, bottom), shape[0], shape[1], fill=False, lw=1.6, zorder=4)
            frame.set_edgecolor(colours[k])
            axes.add_patch(frame)
            break
    axes.set(xlim=(0, size[0]), ylim=(0, size[1]))
    return len(placed)


def _around(point: np.ndarray, shape: np.ndarray, size: np.ndarray) -> Iterator[np.ndarray]:
    """Centres for a thumbnail near a point, inside the map, the nearest first."""
    for reach in REACH:
        for angle in np.arange(DIRECTIONS if reach else 1) * 2 * np.pi / DIRECTIONS:
            centre = point + reach * shape * [np.cos(angle), np.sin(angle)]
            yield np.clip(centre, shape / 2 + INSIDE_IN, size - shape / 2 - INSIDE_IN)


MOST_TICKS = 16
SIDE_IN = 4.2


@style.styled
def draw_cka(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    models: tuple[str, str] = ("layer", "layer"),
    note: str = "",
) -> Figure:
    """CKA [rows, columns], the first row at the bottom, as in the papers; NaN is gray.

    Args:
      values: at most 1; below 0 is drawn as 0.
      rows: names of the representations, from the first layer on.
      columns: those of the other model, or checkpoint; the rows' if None.
      models: what the rows and the columns are, below and beside the axes.
      note: a line below the title.
    """
    columns = rows if columns is None else columns
    high, wide = values.shape
    longest = lambda names: min(max(tiles.width_in(n, style.SMALL) for n in names), 1.2)
    left, below = longest(rows) + 0.35, longest(columns) + 0.35
    upright = _fits_upright(columns, wide)
    sheet = Sheet(
        1,
        1,
        height_by_width=min(max(high / wide, 0.35), 1.6),
        title="Similarity of representations (CKA)",
        note=note,
        most_in=SIDE_IN,
        left=left,
        below=0.45 if upright else below,
        bar=True,
    )
    axes = sheet.axes(0, 0)
    shown = np.ma.masked_invalid(np.clip(values, 0, 1))
    colours = matplotlib.colormaps[style.HEAT].with_extremes(bad=style.MISSING)
    axes.imshow(shown, cmap=colours, vmin=0, vmax=1, origin="lower", aspect="auto")
    axes.tick_params(length=0)
    _name(axes, "y", rows)
    _name(axes, "x", columns, rotation=0 if upright else 90)
    axes.set_ylabel(tiles.fit(models[0], sheet.tile_height, style.FONT))
    axes.set_xlabel(tiles.fit(models[1], sheet.tile, style.FONT))
    sheet.colour_bar(style.HEAT, 0, 1, "CKA (linear; 1: the same up to a rotation)")
    return sheet.figure


def _shown(number: int) -> list[int]:
    """Returns the places of the names that are written."""
    return list(range(0, number, -(-number // MOST_TICKS)))


def _fits_upright(names: Sequence[str], wide: int) -> bool:
    room = min(SIDE_IN, style.canvas().width_in - 1) / len(_shown(wide)) - 0.05
    return all(tiles.width_in(names[k], style.SMALL) <= room for k in _shown(wide))


def _name(axes: Axes, axis: str, names: Sequence[str], rotation: int = 0) -> None:
    places = _shown(len(names))
    labels = [tiles.fit(names[k], 1.2, style.SMALL) for k in places]
    set_ticks = axes.set_yticks if axis == "y" else axes.set_xticks
    set_ticks(places, labels, size=style.SMALL, rotation=rotation)
