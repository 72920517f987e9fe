"""Pictures of features: colours of patches, neighbours, a map of images, CKA of layers."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.core.errors import UserError
from vit_jax.draw import style, tiles
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.tiles import PhotoSheet, Sheet
from vit_jax.models.observe import chunks
from vit_jax.probes import cka, neighbours, principal
from vit_jax.tools.look.visualize.photos import Outputs, Photos

TITLE = "Its features"
LAST = "norm"  # of activations: what the last norm gives, of ConvNets the last feature map
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
    at: str = LAST,
) -> Findings:
    """Pictures of a few photos' patches, and of the features of N images with names and labels.

    at: the activation that patches are shown by (models/activations.py).
    """
    patches = patch_features(model, shown.stacked, at)
    colours, pixels = principal.colours(patches), shown.pixels(shown.stacked)
    what = "the last layer makes" if at == LAST else f"the model has at {at}"
    note = f"What {what} of each patch: equal colours mean alike."
    draw = functools.partial(draw_features, pixels, colours, shown.names)
    pictures, text = [Picture("features", "Features of patches", note, draw)], ""
    number, thumbnails = len(outputs.features), outputs.thumbnails
    if number > 1:
        queries = np.linspace(0, number - 1, min(QUERIES, number)).round().astype(int).tolist()
        nearest = neighbours.nearest(outputs.features, queries, min(NEAREST, number - 1))
        draw = functools.partial(draw_neighbours, thumbnails, queries, *nearest, names)
        note = "Each image and those nearest to it by the cosine of what the head sees."
        pictures.append(Picture("neighbours", "Nearest neighbours", note, draw))
    if number >= principal.LEAST_ON_MAP:
        points = principal.map_2d(outputs.features, method)
        draw = functools.partial(draw_map, points, thumbnails, labels, AXES[method])
        note = f"Every image by its features, in two dimensions by {method.upper()}."
        pictures.append(Picture("map", "A map of images", note, draw))
    if len(shown) >= cka.LEAST:
        pictures.append(_layer_similarity(model, shown.stacked))
    else:
        text = f"CKA of layers takes {cka.LEAST} images or more."
    return Findings(Section(TITLE, pictures, text), {})


def patch_features(model: Any, inputs: np.ndarray, at: str) -> np.ndarray:
    """[B, R, C, D] of images [B, H, W, 3]. UserError unless the activation has patches."""
    if at == LAST:
        found = chunks.compute(lambda m, x: m.tokens(x).astype(np.float32), model, inputs)
    else:
        one = lambda m, x: m.activations(x, [at])[at].astype(np.float32)
        found = chunks.compute(one, model, inputs)
    grid = model.spec.token_layout(model.preprocess.image_size).grid
    if found.ndim == 4:  # feature maps
        return found
    if found.ndim != 3 or found.shape[1] < grid[0] * grid[1]:
        raise UserError(f"has the shape {found.shape}, not patches.", field="--at", value=at)
    return found[:, -grid[0] * grid[1] :].reshape(len(found), *grid, -1)


def layer_tokens(model: Any, inputs: np.ndarray) -> list[np.ndarray]:
    """Tokens [B, ..., D] after each block of a ViT, or each unit of a ResNet, of norm 1.

    Without that a few tokens of large norm would decide which layers are alike.
    """
    depth = model.spec.depth if hasattr(model.spec, "depth") else sum(model.spec.units)

    def compute(model: Any, images: jax.Array) -> Any:
        tokens = [x.astype(np.float32) for x in model.tokens(images, layers=tuple(range(depth)))]
        norms = [jnp.linalg.norm(x, axis=-1, keepdims=True) for x in tokens]
        return tuple(x / jnp.maximum(norm, 1e-12) for x, norm in zip(tokens, norms, strict=True))

    return list(chunks.compute(compute, model, inputs))


def compare_models(
    name: str, one: tuple[Any, np.ndarray], other: tuple[Any, np.ndarray]
) -> Picture:
    """CKA between the layers of two models, each with its inputs; `name` is the other's."""
    rows, columns = layer_tokens(*one), layer_tokens(*other)
    similarity = cka.linear_cka(rows, columns)
    titles = [[str(layer + 1) for layer in range(len(of))] for of in (rows, columns)]
    file = f"cka_with_{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('_')}"
    note = "How alike the tokens of each layer are to those of each layer of the other model."
    draw = functools.partial(
        draw_cka,
        similarity,
        *titles,
        models=("layer", f"layer of {name}"),
        note=f"unbiased, {len(one[1]):,} images",
    )
    return Picture(file, f"Similarity with {name}", note, draw)


def _layer_similarity(model: Any, inputs: np.ndarray) -> Picture:
    layers = layer_tokens(model, inputs)
    titles = [str(layer + 1) for layer in range(len(layers))]
    line = f"unbiased, {len(inputs):,} images, every token with norm 1"
    draw = functools.partial(draw_cka, cka.linear_cka(layers), titles, note=line)
    note = "How alike the tokens of two layers are (arXiv 1905.00414, 2010.15327); 1 is the same."
    return Picture("cka", "Similarity of layers", note, draw)


@style.styled
def draw_features(photos: np.ndarray, colours: np.ndarray, names: Sequence[str]) -> Figure:
    """Draws the colours [B, R, C, 3] of patches, from 0 to 1, beside photos [B, H, W, 3]."""
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
    """Draws queries of N photos, and indices and cosines [Q, k] of those nearest to each."""
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
MAP_IN, NARROW_MAP_IN = 7.0, 3.6  # side of the map on a screen and on a phone, about
THUMBNAIL_SHARES = (0.085, 0.045)  # of that side, for few images and for many
OTHER = "other classes"


@style.styled
def draw_map(
    points: np.ndarray,
    photos: np.ndarray,
    labels: Sequence[str] | None = None,
    axes_names: tuple[str, str] = AXES["pca"],
) -> Figure:
    """Draws images as points [N, 2], with thumbnails where there is room; labels have colours."""
    side = NARROW_MAP_IN if style.is_narrow() else MAP_IN
    figure = style.blank(side, side)
    axes = figure.add_subplot()
    longer = float(np.interp(len(points), [30, 300], THUMBNAIL_SHARES))
    axes.set(xlim=(-longer, 1 + longer), ylim=(-longer, 1 + 2 * longer), xticks=[], yticks=[])
    axes.set_xlabel(axes_names[0])
    axes.set_ylabel(axes_names[1])
    low = points.min(axis=0)
    places = (points - low) / np.maximum(points.max(axis=0) - low, 1e-12)
    colours: dict[int, str] = {}
    for index, (name, members) in enumerate(_groups(labels, len(points)).items()):
        colour, marker = (style.MUTED, ".") if name == OTHER else style.series(index)
        colours |= dict.fromkeys(members, colour)
        label = tiles.fit(name, 2.0, style.SMALL)
        x, y = places[members].T
        axes.scatter(x, y, s=16, color=colour, marker=marker, linewidth=0, label=label, zorder=5)
    drawn = _thumbnails(axes, places, photos, colours, longer)
    note = f"{len(points):,} images, {drawn:,} of them with a thumbnail"
    style.entitle(figure, "Images by their features", note)
    if labels is not None:
        style.legend(figure)
    return figure


def _groups(labels: Sequence[str] | None, number: int) -> dict[str, list[int]]:
    """Indices by label, the most frequent first, with rare ones as OTHER."""
    if labels is None:
        return {"": list(range(number))}
    frequent = [label for label, _ in collections.Counter(sorted(labels)).most_common()]
    groups: dict[str, list[int]] = {label: [] for label in frequent[:MOST_CLASSES]}
    for k, label in enumerate(labels):
        groups.setdefault(label if label in groups else OTHER, []).append(k)
    return groups


def _thumbnails(
    axes: Axes, places: np.ndarray, photos: np.ndarray, colours: dict[int, str], longer: float
) -> int:
    """Draws thumbnails that find room, in their classes' colours; returns their number."""
    height, width = photos.shape[1:3]
    shape = np.array([width, height]) * longer / max(height, width)
    corners = np.empty((0, 2))
    for k, point in enumerate(places):
        left, bottom = corner = point + np.array([-shape[0] / 2, longer / 6])
        if not (np.abs(corners - corner) < 1.06 * shape).all(axis=1).any():
            corners = np.vstack([corners, corner])
            box = (left, left + shape[0], bottom, bottom + shape[1])
            axes.imshow(style.displayed(photos[k]), extent=box, zorder=3)
            frame = Rectangle((left, bottom), *shape, fill=False, lw=1.6, zorder=4)
            frame.set_edgecolor(colours[k])
            axes.add_patch(frame)
    return len(corners)


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
    """Draws CKA [rows, columns], the first row at the bottom; below 0 as 0, NaN in gray."""
    columns = rows if columns is None else columns
    high, wide = values.shape
    left, below = (
        0.35 + min(max(tiles.width_in(name, style.SMALL) for name in names), 1.2)
        for names in (rows, columns)
    )
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
    return list(range(0, number, -(-number // MOST_TICKS)))


def _fits_upright(names: Sequence[str], wide: int) -> bool:
    room = min(SIDE_IN, style.canvas().width_in - 1) / len(_shown(wide)) - 0.05
    return all(tiles.width_in(names[k], style.SMALL) <= room for k in _shown(wide))


def _name(axes: Axes, axis: str, names: Sequence[str], rotation: int = 0) -> None:
    places = _shown(len(names))
    labels = [tiles.fit(names[k], 1.2, style.SMALL) for k in places]
    set_ticks = axes.set_yticks if axis == "y" else axes.set_xticks
    set_ticks(places, labels, size=style.SMALL, rotation=rotation)
