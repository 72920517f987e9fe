"""Where a model looks: attention distance, rollout, relevance, single heads, norms of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.draw.figures.distance import distance as draw_distance
from vit_jax.draw.figures.heat import attention as draw_attention
from vit_jax.draw.figures.heat import overlays as draw_overlays
from vit_jax.draw.figures.norms import norms as draw_norms
from vit_jax.draw.figures.norms import norms_by_layer as draw_norms_by_layer
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.style import look
from vit_jax.models import observe
from vit_jax.models.observe import Norms
from vit_jax.models.observe.layers import View, view_of
from vit_jax.probes.attention import distance, outliers

TITLE = "Where it looks"
NUMBERS = ("first_distance_px", "last_distance_px", "high_norm_share")
CLASS = "class"  # the query of the class token


class Question(NamedTuple):
    """What is asked beside what is always shown.

    Attributes:
      classes: for each photo, whose relevance is shown; None for a model without a head.
      captions: for each photo.
      layers: of which single heads are shown, from 0; None: the first, the middle and the last.
      query: (row, column) of the patch that looks, from 0; None: the class token, or the patch in
        the middle.
    """

    classes: Sequence[int] | None
    captions: Sequence[str]
    layers: Sequence[int] | None = None
    query: tuple[int, int] | None = None


def findings(model: Any, inputs: np.ndarray, pixels: np.ndarray, asked: Question) -> Findings:
    """The pictures and numbers of what a model looks at in a few photos.

    UserError as `check`, or for a damaged photo.
    """
    maps: dict[str, np.ndarray] = {}
    if asked.classes is not None:
        maps["relevance"] = observe.relevance(model, inputs, asked.classes).map.patches
    if not observe.has_attention(model):
        said = (
            f"This {type(model).__name__} has no blocks of attention: no distances, no rollout, no "
            "heads. "
            "Relevance is Grad-CAM's (arXiv 1610.02391), of the last feature map."
        )
        return Findings(Section(TITLE, [_overlays(pixels, maps, asked)], said), {})
    view = view_of(model)
    query = _query(view, asked.query)
    rollout, distances, norms, heads = observe.look(
        model,
        inputs,
        (observe.Rollout(), observe.Distances(), observe.TokenNorms(), observe.FromQuery(query)),
    ).results
    maps = {"rollout": rollout.patches, **maps}
    pictures = [
        _overlays(pixels, maps, asked),
        _distances(distances, view),
        *_norms(pixels, norms, asked.captions),
        *_heads(pixels[0], heads.patches[0], query, _layers(view.depth, asked.layers)),
    ]
    mean = distances.mean(axis=(0, 2))
    large = outliers.outliers(norms.blocks.patches[:, -1])
    found = (float(mean[0]), float(mean[-1]), float(large.mean()))
    return Findings(Section(TITLE, pictures), dict(zip(NUMBERS, found, strict=True)))


def check(model: Any, layers: Sequence[int] | None, query: tuple[int, int] | None) -> None:
    """UserError for a Question's layer or query that the model does not have."""
    if observe.has_attention(model):
        view = view_of(model)
        _layers(view.depth, layers)
        _query(view, query)
        return
    for flag, asked in (("layers", layers), ("query", query)):
        if asked is not None:
            raise UserError(
                f"--{flag}={','.join(str(number + 1) for number in asked)} asks for attention, and "
                f"a {type(model).__name__} has none. Leave it out, or give a ViT or a hybrid."
            )


def _query(view: View, asked: tuple[int, int] | None) -> Any:
    """UserError for a patch that is not there."""
    rows, columns = view.tokens.grid
    if asked is None:
        return CLASS if view.tokens.class_token else (rows // 2, columns // 2)
    if asked[0] not in range(rows) or asked[1] not in range(columns):
        raise UserError(
            f"--query={asked[0] + 1},{asked[1] + 1}: the model has {rows} rows and {columns} "
            f"columns of patches. Give one from 1,1 to {rows},{columns}."
        )
    return asked


def _layers(depth: int, asked: Sequence[int] | None) -> list[int]:
    """UserError for a layer that is not there."""
    layers = sorted(set((0, depth // 2, depth - 1) if asked is None else asked))
    missing = [layer for layer in layers if layer not in range(depth)]
    if missing:
        raise UserError(
            f"--layers={missing[0] + 1}: the model has layers 1 to {depth}. Give one of these."
        )
    return layers


def _overlays(pixels: np.ndarray, maps: dict[str, np.ndarray], asked: Question) -> Picture:
    return Picture(
        "attention",
        "Rollout and relevance" if "rollout" in maps else "Relevance",
        "Rollout (arXiv 2005.00928) follows attention from the head's input back to the patches; "
        "relevance (arXiv 2103.15679, Grad-CAM for ResNets) is what speaks for the class."
        if "rollout" in maps
        else "What speaks for the class, by Grad-CAM.",
        look.png(draw_overlays(pixels, maps, asked.captions)),
        wide=True,
    )


def _distances(distances: np.ndarray, view: View) -> Picture:
    every = distance.patch_distances(view.tokens.grid, view.pixels_per_patch)
    drawn = draw_distance(
        distances.mean(axis=0), images=len(distances), uniform=float(every.mean())
    )
    return Picture(
        "distances",
        "Mean attention distance",
        "How far each head looks, as in figure 7 of the ViT paper: low dots are local, as a "
        "convolution is; heads near the dashed line look everywhere.",
        look.png(drawn),
    )


def _heads(photo: np.ndarray, weights: np.ndarray, query: Any, layers: list[int]) -> list[Picture]:
    """weights: [L, H, rows, columns]."""
    patch = None if query == CLASS else query
    return [
        Picture(
            f"heads_of_layer_{layer + 1}",
            f"Heads of layer {layer + 1}",
            "What one token takes from each patch, by head, in the first photo.",
            look.png(draw_attention(photo, weights[layer], query=patch, layer=layer + 1)),
            wide=True,
        )
        for layer in layers
    ]


def _norms(pixels: np.ndarray, norms: Norms, captions: Sequence[str]) -> list[Picture]:
    """After each block, before the last norm; class token and registers apart."""
    blocks = norms.blocks
    last = blocks.patches[:, -1]
    out = outliers.outliers(last)
    of_layers = np.moveaxis(blocks.patches, 1, 0)
    first = np.concatenate([blocks.class_token, blocks.registers], axis=-1).mean(axis=0)
    names = ["class token"] * blocks.class_token.shape[-1]
    names += [f"register {i + 1}" for i in range(blocks.registers.shape[-1])]
    others = dict(zip(names, first.T, strict=True))
    limit = outliers.RATIO_TO_MEDIAN * float(np.median(last))
    by_layer = draw_norms_by_layer(
        of_layers.reshape(len(of_layers), -1), others=others, threshold=limit
    )
    note = (
        "Patches of high norm hold what is not local (arXiv 2309.16588); registers, where a model "
        "has them, take that over."
    )
    title = f"Norms of patch tokens after layer {len(of_layers)}"
    return [
        Picture("norms_by_layer", "Norms of tokens by layer", note, look.png(by_layer)),
        Picture(
            "norms",
            title,
            f"Framed are norms above {outliers.RATIO_TO_MEDIAN:g} x the median, {limit:.3g}.",
            look.png(draw_norms(pixels, last, out, captions, title=title)),
            wide=True,
        ),
    ]
