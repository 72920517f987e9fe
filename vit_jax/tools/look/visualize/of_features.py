"""What a model's features hold: colours of patches, neighbours, a map of images, CKA of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.draw.figures.cka import cka as draw_cka
from vit_jax.draw.figures.features import features as draw_features
from vit_jax.draw.figures.image_map import image_map as draw_map
from vit_jax.draw.figures.neighbours import neighbours as draw_neighbours
from vit_jax.draw.html_page import Findings, Picture, Section
from vit_jax.draw.style import look
from vit_jax.models.observe import chunks
from vit_jax.probes import cka, feature_colours, map_2d, neighbours
from vit_jax.tools.look.visualize.passes import Seen

TITLE = "Its features"
NEAREST, QUERIES = 5, 6  # the most neighbours of an image, and images that have theirs shown
AXES = {
    "pca": ("first component (no unit)", "second component (no unit)"),
    "tsne": ("t-SNE, first axis (no unit)", "t-SNE, second axis (no unit)"),
    "umap": ("UMAP, first axis (no unit)", "UMAP, second axis (no unit)"),
}


def findings(
    model: Any,
    inputs: np.ndarray,
    pixels: np.ndarray,
    captions: Sequence[str],
    seen: Seen,
    *,
    names: Sequence[str],
    labels: Sequence[str] | None,
    method: str,
) -> Findings:
    """The pictures of a model's features.

    Args:
      inputs, pixels, captions: of a few photos, whose patches are shown.
      seen: what it makes of N images.
      names: of these N.
      labels: their classes, for colours; None: not known.
      method: how they become a map: see probes/map_2d.py.
    """
    pictures, said = [_colours(model, inputs, pixels, captions)], []
    number = len(seen.features)
    if number > 1:
        pictures.append(_neighbours(seen, names))
    if number >= map_2d.LEAST:
        pictures.append(_map(seen, labels, method))
    if len(inputs) >= cka.LEAST:
        pictures.append(_layers(model, inputs))
    else:
        said.append(f"CKA of layers takes {cka.LEAST} images or more.")
    return Findings(Section(TITLE, pictures, " ".join(said)), {})


def _colours(
    model: Any, inputs: np.ndarray, pixels: np.ndarray, captions: Sequence[str]
) -> Picture:
    tokens = _tokens(model, inputs)
    grid = model.spec.token_layout(model.preprocess.image_size).grid
    patches = tokens[:, -grid[0] * grid[1] :].reshape(len(tokens), *grid, -1)
    drawn = draw_features(pixels, feature_colours.colours(patches), captions)
    note = (
        "The first three principal components of the last layer's patches as red, green and blue, "
        "the same in all images: equal colours mean alike."
    )
    return Picture("features", "Features of patches", note, look.png(drawn), wide=True)


def _tokens(model: Any, inputs: np.ndarray) -> np.ndarray:
    """[B, N, D] after the last norm."""
    return chunks.compute(lambda model, x: model.tokens(x).astype(np.float32), model, inputs)


def _neighbours(seen: Seen, names: Sequence[str]) -> Picture:
    number = len(seen.features)
    queries = np.linspace(0, number - 1, min(QUERIES, number)).round().astype(int).tolist()
    found = neighbours.nearest(
        seen.features, seen.features[queries], min(NEAREST, number - 1), leave_out=queries
    )
    drawn = draw_neighbours(seen.thumbnails, queries, found.indices, found.similarities, names)
    note = "Each image and those nearest to it by the cosine of what the head sees."
    return Picture("neighbours", "Nearest neighbours", note, look.png(drawn), wide=True)


def _map(seen: Seen, labels: Sequence[str] | None, method: str) -> Picture:
    points = map_2d.map_2d(seen.features, method)
    drawn = draw_map(points, seen.thumbnails, labels=labels, axes_names=AXES[method])
    note = f"Every image by its features, in two dimensions by {method.upper()}."
    return Picture("map", "A map of images", note, look.png(drawn), wide=True)


def layers(model: Any, inputs: np.ndarray) -> list[np.ndarray]:
    """Tokens after each block of a ViT, or each unit of a ResNet: [B, ...] each."""
    depth = model.spec.depth if hasattr(model.spec, "depth") else sum(model.spec.units)

    def compute(model: Any, images: jax.Array) -> Any:
        found = model.tokens(images, layers=tuple(range(depth)))
        return tuple(x.astype(np.float32) for x in found)

    return list(chunks.compute(compute, model, inputs))


def compared(name: str, one: tuple[Any, np.ndarray], other: tuple[Any, np.ndarray]) -> Picture:
    """CKA between the layers of two models, each with the same images as it takes them.

    `name` is what the other model is called. UserError for fewer than 4 images.
    """
    alike = cka.MinibatchCKA()
    rows, columns = layers(*one), layers(*other)
    alike.add(rows, columns)
    titles = [[str(layer + 1) for layer in range(len(of))] for of in (rows, columns)]
    note = f"unbiased, {len(one[1]):,} images"
    drawn = draw_cka(alike.result(), *titles, models=("layer", f"layer of {name}"), note=note)
    return Picture(
        f"cka_with_{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('_')}",
        f"Similarity with {name}",
        "How alike the tokens of each layer are to those of each layer of the other model.",
        look.png(drawn),
    )


def _layers(model: Any, inputs: np.ndarray) -> Picture:
    alike = cka.MinibatchCKA()
    of = layers(model, inputs)
    alike.add(of)
    titles = [str(layer + 1) for layer in range(len(of))]
    drawn = draw_cka(alike.result(), titles, note=f"unbiased, {len(inputs):,} images")
    note = "How alike the tokens of two layers are (arXiv 1905.00414, 2010.15327); 1 is the same."
    return Picture("cka", "Similarity of layers", note, look.png(drawn))
