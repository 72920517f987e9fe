"""Pictures of attention: its distance, rollout, relevance, single heads, norms of tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.core.screen import format_percent
from vit_jax.draw import style
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.tiles import PhotoSheet, Sheet, columns
from vit_jax.models import observe
from vit_jax.models.observe import Norms
from vit_jax.models.observe.attention import View, view_of
from vit_jax.probes import attention as rules

TITLE = "Where it looks"
NUMBERS = ("first_distance_px", "last_distance_px", "high_norm_share")
CLASS = "class"  # the query of the class token


class Question(NamedTuple):
    """Options of the pictures; layers, rows and columns count from 0."""

    # Class of each photo whose relevance is shown, if the model has a head.
    classes: Sequence[int] | None
    captions: Sequence[str]  # caption of each photo
    # Layers whose heads are shown; default: the first, the middle and the last.
    layers: Sequence[int] | None = None
    # (row, column) of the patch that looks; default: the class token, or the middle patch.
    query: tuple[int, int] | None = None


def findings(model: Any, inputs: np.ndarray, pixels: np.ndarray, question: Question) -> Findings:
    """Pictures and numbers of a model's attention in a few photos."""
    pixels = observe.seen_pixels(model, pixels)
    maps: dict[str, np.ndarray] = {}
    if question.classes is not None:
        maps["relevance"] = observe.relevance(model, inputs, question.classes).map.patches
    if not observe.has_attention(model):
        text = (
            f"This {type(model).__name__} has no blocks of attention. Relevance is Grad-CAM's "
            "(arXiv 1610.02391), of the last feature map."
        )
        return Findings(Section(TITLE, [_overlays(pixels, maps, question)], text), {})
    view = view_of(model)
    query = _query(view, question.query)
    rollout, distances, norms, heads = observe.look(
        model,
        inputs,
        (observe.Rollout(), observe.Distances(), observe.TokenNorms(), observe.FromQuery(query)),
    ).results
    maps = {"rollout": rollout.patches, **maps}
    every = rules.patch_distances(view.tokens.grid, view.pixels_per_patch)
    of_heads = distances.mean(axis=0)
    pictures = [
        _overlays(pixels, maps, question),
        Picture(
            "distances",
            "Mean attention distance",
            "How far each head looks, as in figure 7 of the ViT paper: low dots are local, as a "
            "convolution is; heads near the dashed line look everywhere.",
            lambda: draw_distance(of_heads, images=len(distances), uniform=float(every.mean())),
        ),
        *_norms(pixels, norms, question.captions, model.spec.distillation_token),
        *_heads(pixels[0], heads.patches[0], query, _layers(view.depth, question.layers)),
    ]
    mean = distances.mean(axis=(0, 2))
    large = rules.outliers(norms.blocks.patches[:, -1])
    numbers = (float(mean[0]), float(mean[-1]), float(large.mean()))
    return Findings(Section(TITLE, pictures), dict(zip(NUMBERS, numbers, strict=True)))


def check(model: Any, layers: Sequence[int] | None, query: tuple[int, int] | None) -> None:
    """Checks that the model has a Question's layers and query."""
    if observe.has_attention(model):
        view = view_of(model)
        _layers(view.depth, layers)
        _query(view, query)
    elif layers is not None or query is not None:
        need_attention(model, "--layers or --query")


def need_attention(model: Any, flag: str) -> None:
    """Raises UserError about a flag for a model without attention."""
    if not observe.has_attention(model):
        raise UserError(f"needs attention, which a {type(model).__name__} lacks.", field=flag)


def _query(view: View, requested: tuple[int, int] | None) -> Any:
    rows, columns = view.tokens.grid
    if requested is None:
        return CLASS if view.tokens.class_token else (rows // 2, columns // 2)
    if requested[0] not in range(rows) or requested[1] not in range(columns):
        rule, value = (
            f"is not from 1,1 to {rows},{columns}.",
            f"{requested[0] + 1},{requested[1] + 1}",
        )
        raise UserError(rule, field="--query", value=value)
    return requested


def _layers(depth: int, requested: Sequence[int] | None) -> list[int]:
    layers = sorted(set((0, depth // 2, depth - 1) if requested is None else requested))
    missing = [layer for layer in layers if layer not in range(depth)]
    if missing:
        raise UserError(f"is not from 1 to {depth}.", field="--layers", value=missing[0] + 1)
    return layers


def _overlays(pixels: np.ndarray, maps: dict[str, np.ndarray], question: Question) -> Picture:
    return Picture(
        "attention",
        "Rollout and relevance" if "rollout" in maps else "Relevance",
        "Rollout (arXiv 2005.00928) follows attention from the head's input back to the patches; "
        "relevance (arXiv 2103.15679, Grad-CAM for ResNets) is what speaks for the class."
        if "rollout" in maps
        else "What speaks for the class, by Grad-CAM.",
        lambda: draw_overlays(pixels, maps, question.captions),
    )


def _heads(photo: np.ndarray, weights: np.ndarray, query: Any, layers: list[int]) -> list[Picture]:
    """weights: [L, H, rows, columns]."""
    patch = None if query == CLASS else query
    return [
        Picture(
            f"heads_of_layer_{layer + 1}",
            f"Heads of layer {layer + 1}",
            "What one token takes from each patch, by head, in the first photo.",
            functools.partial(draw_attention, photo, weights[layer], query=patch, layer=layer + 1),
        )
        for layer in layers
    ]


def _norms(
    pixels: np.ndarray, norms: Norms, captions: Sequence[str], distillation_token: bool
) -> list[Picture]:
    """Pictures of the norms after each block, before the last norm."""
    blocks = norms.blocks
    last = blocks.patches[:, -1]
    out = rules.outliers(last)
    of_layers = np.moveaxis(blocks.patches, 1, 0)
    first = np.concatenate([blocks.class_token, blocks.registers], axis=-1).mean(axis=0)
    names = ["class token"] * blocks.class_token.shape[-1]
    names += ["distillation token"] * distillation_token  # the first of the layout's registers
    names += [f"register {i + 1}" for i in range(blocks.registers.shape[-1] - distillation_token)]
    others = dict(zip(names, first.T, strict=True))
    limit = rules.RATIO_TO_MEDIAN * float(np.median(last))
    of_all = of_layers.reshape(len(of_layers), -1)
    note = (
        "Patches of high norm hold what is not local (arXiv 2309.16588); registers, where a model "
        "has them, take that over."
    )
    title = f"Norms of patch tokens after layer {len(of_layers)}"
    return [
        Picture(
            "norms_by_layer",
            "Norms of tokens by layer",
            note,
            lambda: draw_norms_by_layer(of_all, others=others, threshold=limit),
        ),
        Picture(
            "norms",
            title,
            f"A patch stands out if its norm is above {limit:.3g}, {rules.RATIO_TO_MEDIAN:g} × the "
            "median.",
            lambda: draw_norms(pixels, last, out, captions, title=title),
        ),
    ]


STRENGTH = 0.68  # of the heat over the photo
PALE = 0.75  # of the photo's brightness below it


def blend(photo: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Draws heat [R, C] over a photo [H, W, 3] in gray: uint8 [H, W, 3].

    Heat is a share of its largest number; numbers below 0 and NaN are 0. It is interpolated
    linearly between the patches' centres.
    """
    photo = style.displayed(photo)
    height, width = photo.shape[:2]
    heat = np.maximum(np.nan_to_num(np.asarray(heat, np.float64)), 0)
    share = heat / max(float(heat.max()), np.finfo(np.float64).tiny)
    raw = Image.fromarray(share.astype(np.float32))
    large = np.clip(np.asarray(raw.resize((width, height), Image.Resampling.BILINEAR)), 0, 1)
    colours = matplotlib.colormaps[style.HEAT](large)[..., :3]
    gray = photo @ np.array([0.299, 0.587, 0.114]) / 255 * PALE
    mixed = STRENGTH * colours + (1 - STRENGTH) * gray[..., None]
    return style.displayed(mixed / (STRENGTH + (1 - STRENGTH) * PALE))


@style.styled
def draw_overlays(
    photos: np.ndarray, maps: Mapping[str, np.ndarray], names: Sequence[str]
) -> Figure:
    """Draws each kind of heat over photos [B, H, W, 3], uint8 or from 0 to 1.

    Args:
      maps: heat [B, R, C] by name ("rollout"), at least 0, scaled by its largest in the image.
      names: B captions, of two lines at most.
    """
    sheet = PhotoSheet(
        photos, names, beside=len(maps), title="What the model looks at", headings=True, bar=True
    )
    for k in range(sheet.across):
        for j, heading in enumerate(("photo", *maps)):
            sheet.heading(sheet.place(k, j)[1], heading)
    for j, heat in enumerate(maps.values(), start=1):
        for k, photo in enumerate(photos):
            sheet.show(*sheet.place(k, j), blend(photo, heat[k]))
    sheet.colour_bar(style.HEAT, 0, 1, "share of the largest in the image")
    return sheet.figure


@style.styled
def draw_attention(
    photo: np.ndarray, weights: np.ndarray, *, query: tuple[int, int] | None, layer: int
) -> Figure:
    """Draws the attention of each head over a photo [H, W, 3], uint8 or from 0 to 1.

    Args:
      weights: [heads, R, C], attention of the query to each patch.
      query: (row, column) of its patch, from 0, or None for the class token.
      layer: number of the layer, from 1.
    """
    number, *grid = weights.shape
    across = min(columns(), 1 + number)
    per_row = max(across - 1, 1)
    of_query = "the class token" if query is None else f"row {query[0] + 1}, column {query[1] + 1}"
    sheet = Sheet(
        math.ceil(number / per_row),
        across,
        height_by_width=photo.shape[0] / photo.shape[1],
        title=f"Attention of layer {layer}",
        note=f"query: {of_query}; below each its head and the largest weight of a patch",
        lines=2,
        bar=True,
        gaps=(1,),
    )
    where = sheet.show(0, 0, style.displayed(photo))
    mark(where, query, photo.shape, grid)
    sheet.caption(0, 0, "photo, query" if query else "photo")
    for k, heat in enumerate(weights):
        place = k // per_row, 1 + k % per_row
        axes = sheet.show(*place, blend(photo, heat))
        mark(axes, query, photo.shape, grid)
        sheet.caption(*place, f"head {k + 1}\n{format_percent(float(np.max(heat)), 1)}")
    sheet.colour_bar(style.HEAT, 0, 1, "attention, share of the largest in the head")
    return sheet.figure


def mark(
    axes: Axes, patch: tuple[int, int] | None, shape: tuple[int, ...], grid: Sequence[int]
) -> None:
    """Frames a patch (row, column) of the grid over a photo of that shape."""
    if patch is None:
        return
    high, wide = shape[0] / grid[0], shape[1] / grid[1]
    corner = (patch[1] * wide - 0.5, patch[0] * high - 0.5)
    for colour, line in ((style.OVER_PHOTOS, 2.4), ("black", 1.0)):
        axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=colour, lw=line))


@style.styled
def draw_distance(distances: np.ndarray, *, images: int, uniform: float) -> Figure:
    """Draws a dot for each head, and a line through the layers' means.

    Args:
      distances: [L, H] mean attention distances, in pixels of the input.
      images: number of images of the mean.
      uniform: distance if all patches got the same attention.
    """
    depth, heads = distances.shape
    figure = style.blank(5.3, 3.7)
    axes = figure.add_subplot()
    layers = np.arange(1, depth + 1)
    axes.plot(layers, distances.mean(axis=1), color=style.MUTED, lw=1.2, label="mean of heads")
    # Sorted and side by side within the layer, so that equal ones do not hide each other.
    aside = np.linspace(-0.18, 0.18, heads) if heads > 1 else np.zeros(1)
    axes.scatter(
        (layers[:, None] + aside).ravel(),
        np.sort(distances, axis=1).ravel(),
        s=16 if depth * heads <= 400 else 9,
        color=style.BLUE,
        alpha=0.75,
        linewidth=0,
        label="a head",
        zorder=3,
    )
    label = "if attention were uniform"
    axes.axhline(uniform, label=label, color=style.VERMILION, lw=1.2, dashes=(6, 3))
    axes.set_ylim(0, 1.06 * max(float(np.nanmax(distances)), uniform, 1))
    style.layer_ticks(axes, depth)
    axes.set_ylabel("mean attention distance (pixels)")
    note = f"{depth} layers of {heads} heads, {images:,} image{'s' if images > 1 else ''}"
    style.entitle(figure, "Mean attention distance", note)
    style.legend(figure)
    return figure


@style.styled
def draw_norms(
    photos: np.ndarray,
    of_patches: np.ndarray,
    outliers: np.ndarray,
    names: Sequence[str],
    *,
    title: str,
) -> Figure:
    """Draws the norms of patches beside photos [B, H, W, 3], with frames around outliers.

    Args:
      of_patches: [B, R, C], of one layer; the colours are the same in all images.
      outliers: [B, R, C] bool.
      names: B captions, of two lines at most.
    """
    shown = [
        f"{name}\n{n} of {each.size} stand out" if n else name
        for name, each, n in zip(names, outliers, outliers.sum(axis=(1, 2)), strict=True)
    ]
    sheet = PhotoSheet(
        photos,
        shown,
        beside=1,
        title=title,
        note=f"{format_percent(outliers.mean(), 1)} of {outliers.size:,} patches stand out, framed "
        "in blue",
        bar=True,
    )
    # Outliers are many times as long as the others, which would all have one colour.
    low, high = (float(f(of_patches)) for f in (np.min, np.max))
    high = high or 1.0  # of weights that are all 0
    low, high = max(low, 1e-3 * high), max(high, 1.01 * low)
    for k, norms in enumerate(of_patches):
        axes = sheet.show(*sheet.place(k, 1), norms, cmap=style.HEAT, norm=LogNorm(low, high))
        for i, j in np.argwhere(outliers[k]):
            corner = (j - 0.5, i - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, color=style.SKY, lw=1.4))
    sheet.colour_bar(style.HEAT, low, high, "norm of the token (no unit), logarithmic", log=True)
    return sheet.figure


@style.styled
def draw_norms_by_layer(
    of_patches: np.ndarray, *, others: Mapping[str, np.ndarray], threshold: float
) -> Figure:
    """Draws the spread of patches' norms over layers, and the norms of all other tokens.

    Args:
      of_patches: [L, M], of all patches of all images.
      others: mean norms [L] by name, such as "class token".
      threshold: norm above which a patch of the last layer is an outlier.
    """
    depth = len(of_patches)
    figure = style.blank(5.3, 3.7)
    axes = figure.add_subplot()
    layers = np.arange(1, depth + 1)
    low, quarter, middle, three, most = np.percentile(of_patches, [1, 25, 50, 75, 99], axis=1)
    axes.fill_between(layers, low, most, color=style.SKY, alpha=0.3, lw=0, label="98% of them")
    axes.fill_between(layers, quarter, three, color=style.SKY, alpha=0.6, lw=0, label="half")
    axes.plot(layers, middle, color=style.BLUE, label="patches, median")
    largest = of_patches.max(axis=1)
    axes.plot(layers, largest, ".", color=style.BLUE, ms=5, label="largest patch")
    for k, (name, values) in enumerate(others.items()):
        colour, marker = style.series(k + 1)
        axes.plot(layers, values, color=colour, marker=marker, ms=4, lw=1.2, label=name)
    label = "stands out in the last layer"
    axes.axhline(threshold, color=style.MUTED, lw=1.2, dashes=(6, 3), label=label)
    axes.set_yscale("log")
    style.plain_log_ticks(axes.yaxis)
    style.layer_ticks(axes, depth)
    axes.set_ylabel("norm of the token (no unit)")
    style.entitle(figure, "Norms of tokens by layer")
    style.legend(figure)
    return figure
