"""The images that a model is looked at with, their classes, and what it computes of them."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError
from vit_jax.models import Preprocess, images
from vit_jax.models.observe import chunks

_SYNSET = re.compile(r"n\d{8}(?=_|\b)")


@dataclasses.dataclass(frozen=True)
class Photos:
    """Image files, and the preparation that a model takes them in.

    Attributes:
      files: N of them.
      labels: N classes, by place among the model's; None where a file does not tell.
      preprocess: how the model takes images.
    """

    files: tuple[Path, ...]
    labels: tuple[int | None, ...]
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.files)

    def subset(self, places: Iterable[int]) -> Photos:
        """Returns the photos at these places."""
        places = list(places)
        of = lambda all_: tuple(all_[place] for place in places)
        return dataclasses.replace(self, files=of(self.files), labels=of(self.labels))

    def evenly_spaced(self, most: int) -> list[int]:
        """Returns places of at most `most` photos at equal distances: some of every class."""
        return images.evenly_spaced(len(self), most)

    def inputs(self) -> Iterator[np.ndarray]:
        """Yields the inputs, float32 [H, W, 3], normalised. UserError for a damaged image."""
        return (images.load(file, self.preprocess) for file in self.files)

    @functools.cached_property
    def stacked(self) -> np.ndarray:
        """The inputs of a few photos, [N, H, W, 3]."""
        return np.stack(list(self.inputs()))

    def pixels(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs [..., H, W, 3] as they look, uint8."""
        return images.displayed(inputs, self.preprocess)

    @property
    def names(self) -> list[str]:
        """Names of the files, without their endings."""
        return [file.stem for file in self.files]

    def groups(self, title: Callable[[int], str]) -> list[str] | None:
        """The class of each photo, or the folder that it lies in; None if all lie in one.

        `title`: a class's number -> what people call it.
        """
        folders = [file.absolute().parent.name for file in self.files]
        named = [
            folder if label is None else title(label)
            for label, folder in zip(self.labels, folders, strict=True)
        ]
        return named if len(set(named)) > 1 else None


def find(paths: Sequence[str], preprocess: Preprocess, class_names: Sequence[str] | None) -> Photos:
    """The images of files and folders; none is decoded yet.

    The class is that of the folder, or a WordNet id at the beginning of the file's name, where the
    model has a class of that name. UserError if a path is not there or has no image.
    """
    files = images.find(list(paths), sys.stderr)
    places = _places(class_names or ())
    return Photos(tuple(files), tuple(_label(file, places) for file in files), preprocess)


def _places(class_names: Sequence[str]) -> dict[str, int]:
    """The place of each class by its name, and by its WordNet id if it begins with one."""
    by_name = {normal(name): place for place, name in enumerate(class_names)}
    ids = ((_SYNSET.match(name), place) for name, place in by_name.items())
    return {found[0]: place for found, place in ids if found} | by_name


def _label(file: Path, places: dict[str, int]) -> int | None:
    synset = _SYNSET.match(file.name)
    said = [normal(file.absolute().parent.name), *([synset[0]] if synset else [])]
    return next((places[name] for name in said if name in places), None)


THUMBNAIL = 56  # pixels, the longer side
Progress = Callable[[str, int, int], None]  # what, done, in all


class Outputs(NamedTuple):
    """The outputs of a model for N images.

    Attributes:
      features: [N, D] float32, the head's input.
      logits: [N, C] float32; None without a head.
      thumbnails: uint8 [N, h, w, 3].
    """

    features: np.ndarray
    logits: np.ndarray | None
    thumbnails: np.ndarray


def compute_outputs(model: Any, photos: Photos, progress: Progress) -> Outputs:
    """Features and logits of all photos, in chunks.

    UserError for a damaged image, or for features or logits that are not finite.
    """

    def compute(model: Any, images: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        features = model.features(images)
        logits = model.classify(features) if model.num_classes else None
        return features.astype(jnp.float32), logits

    thumbnails: list[np.ndarray] = []

    def shown() -> Iterator[np.ndarray]:
        for done, image in enumerate(photos.inputs(), start=1):
            small = Image.fromarray(photos.pixels(image))
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            thumbnails.append(np.asarray(small))
            progress("features", done, len(photos))
            yield image

    features, logits = chunks.compute(compute, model, shown())
    for name, values in (("features", features), ("logits", logits)):
        if values is None:
            continue
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise UserError(
                f"The {name} of {photos.files[bad[0]]} are not finite, and those of "
                f"{len(bad) - 1:,} other images: the weights are damaged, or their training "
                "diverged. Give other weights, such as an earlier checkpoint."
            )
    return Outputs(features, logits, np.stack(thumbnails))
