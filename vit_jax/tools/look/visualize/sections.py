"""All sections of the page, of one model and a set of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core import synsets
from vit_jax.core.errors import UserError, nearest
from vit_jax.draw import of_attention, of_weights
from vit_jax.draw.html_page import Findings
from vit_jax.draw.of_attention import Question
from vit_jax.probes import map_2d
from vit_jax.tools.look.visualize import of_errors, of_features, passes
from vit_jax.tools.look.visualize.passes import Progress
from vit_jax.tools.look.visualize.photos import Photos
from vit_jax.weights import Loaded


class Options(NamedTuple):
    """The values of the command's flags of these names; layers and patches count from 0."""

    max_images: int
    map: str
    of_class: str | None = None
    layers: Sequence[int] | None = None
    query: tuple[int, int] | None = None


def sections(
    loaded: Loaded, photos: Photos, options: Options, progress: Progress
) -> list[Findings]:
    """What the weights, attention, features and mistakes show.

    UserError for a class, a layer, a patch or a map's package that is not there, before any image
    is read; for a damaged image; and for features or logits that are not finite.
    """
    model, names = loaded.model, loaded.class_names
    wanted = None if options.of_class is None else class_of(options.of_class, model, names)
    of_attention.check(model, options.layers, options.query)
    map_2d.check(options.map)
    seen = passes.look(model, photos, progress)
    places = photos.spread(options.max_images)
    shown = photos.some(places)
    inputs = np.stack(list(shown.inputs()))
    classes = None
    if seen.logits is not None:
        predicted = seen.logits[places].argmax(axis=-1).tolist()
        classes = predicted if wanted is None else [wanted] * len(places)
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


def class_of(asked: str, model: Any, names: Sequence[str] | None) -> int:
    """A class of the model, by its name or a part of "n01 cock, hen", or else by its number.

    UserError if there is none, or several have that name.
    """
    number = model.num_classes
    if not number:
        raise UserError(f"--of_class={asked}: these weights have no head, so no classes.")
    every = names or ()
    places = [place for place, name in enumerate(every) if name == asked]
    places = places or [place for place, name in enumerate(every) if asked in _called(name)]
    if len(places) > 1:
        which = "; ".join(f"{place}, {every[place]}" for place in places)
        raise UserError(f"--of_class={asked} is the name of several classes: {which}. Say which.")
    if places:
        return places[0]
    if asked.isdecimal() and int(asked) < number:
        return int(asked)
    valid = f"Give a number from 0 to {number - 1:,}."
    if names:
        valid = nearest(asked, {called for name in names for called in _called(name)})
    raise UserError(f"--of_class={asked} is no class of this model. {valid}")


def _called(name: str) -> list[str]:
    """What "n01514668 cock, rooster" is called besides."""
    words = synsets.without_id(name)
    return [*([name.partition(" ")[0], words] if words != name else []), *words.split(", ")]


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
