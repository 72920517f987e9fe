"""All sections of the page, of one model and a set of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.core import synsets
from vit_jax.core.errors import UserError, nearest
from vit_jax.visualize import of_attention, of_errors, of_features, of_weights, passes
from vit_jax.visualize.of_attention import Question
from vit_jax.visualize.passes import Progress, Seen
from vit_jax.visualize.photos import Photos
from vit_jax.visualize.picture import Findings
from vit_jax.weights import Loaded


class Options(NamedTuple):
    """The values of the command's flags of these names; layers and patches count from 0."""

    max_images: int = 8
    of_class: str | None = None
    layers: Sequence[int] | None = None
    query: tuple[int, int] | None = None
    map: str = "pca"


def sections(
    loaded: Loaded, photos: Photos, options: Options, progress: Progress
) -> list[Findings]:
    """What the weights, attention, features and mistakes show.

    UserError for a damaged image, a class, a layer or a patch that is not there, and features that
    are not finite.
    """
    model, names = loaded.model, loaded.class_names
    seen = passes.look(model, photos, progress)
    places = photos.spread(options.max_images)
    shown = photos.some(places)
    inputs = np.stack(list(shown.inputs()))
    classes = _classes(seen, places, options.of_class, names)
    asked = Question(classes, _captions(shown, classes, names), options.layers, options.query)
    pixels = shown.pixels(inputs)
    known = [title(label, names) for label in photos.labels if label is not None]
    return [
        of_weights.findings(model),
        of_attention.findings(model, inputs, pixels, asked),
        of_features.findings(
            model, inputs, pixels, shown.names, seen,
            names=photos.names,
            labels=known if len(known) == len(photos) else None,
            method=options.map,
        ),
        of_errors.findings(model, photos, seen, lambda number: title(number, names)),
    ]  # fmt: skip


def _classes(
    seen: Seen, places: Sequence[int], asked: str | None, names: Sequence[str] | None
) -> list[int] | None:
    """For each image, whose relevance is shown; None without a head."""
    if seen.logits is None:
        if asked is not None:
            raise UserError(f"--of_class={asked}: these weights have no head, so no classes.")
        return None
    if asked is None:
        return seen.logits[list(places)].argmax(axis=-1).tolist()
    return [class_of(asked, seen.logits.shape[1], names)] * len(places)


def class_of(asked: str, number: int, names: Sequence[str] | None) -> int:
    """The place of a class of `number`, by this, by its name, or by a part of "n01 cock, hen"."""
    if asked.isdecimal() and int(asked) < number:
        return int(asked)
    for place, name in enumerate(names or ()):
        synset, _, rest = name.partition(" ")
        if asked in (name, synset, rest, *rest.split(", ")):
            return place
    valid = nearest(asked, names) if names else f"Give a number from 0 to {number - 1:,}."
    raise UserError(f"--of_class={asked} is no class of this model. {valid}")


def _captions(
    shown: Photos, classes: Sequence[int] | None, names: Sequence[str] | None
) -> list[str]:
    """The name of each file, and the class whose relevance is shown."""
    if classes is None:
        return shown.names
    titles = [title(number, names) for number in classes]
    return [f"{file}: {title}" for file, title in zip(shown.names, titles, strict=True)]


def title(number: int, names: Sequence[str] | None) -> str:
    """A class as people call it: "cock" for "n01514668 cock"."""
    return synsets.without_id(names[number]) if names else f"class {number}"
