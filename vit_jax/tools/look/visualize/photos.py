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

from vit_jax.core import arrays
from vit_jax.core.class_names import normal
from vit_jax.core.errors import UserError
from vit_jax.models import Preprocess, images
from vit_jax.models.head import num_image_classes
from vit_jax.models.observe import chunks

_SYNSET = re.compile(r"n\d{8}(?=_|\b)")


@dataclasses.dataclass(frozen=True)
class Photos:
    """N image files, their classes as far as known, and the model's preparation of images."""

    files: tuple[Path, ...]
    labels: tuple[int | None, ...]
    preprocess: Preprocess
    channels: tuple[int, ...] = arrays.FIRST  # that are shown of arrays

    def __len__(self) -> int:
        return len(self.files)

    def subset(self, places: Iterable[int]) -> Photos:
        places = list(places)
        files = tuple(self.files[place] for place in places)
        labels = tuple(self.labels[place] for place in places)
        return dataclasses.replace(self, files=files, labels=labels)

    def evenly_spaced(self, most: int) -> list[int]:
        return images.evenly_spaced(len(self), most)

    def inputs(self) -> Iterator[np.ndarray]:
        return (images.load(file, self.preprocess) for file in self.files)

    @functools.cached_property
    def stacked(self) -> np.ndarray:
        """The inputs of a few photos, [N, H, W, 3]."""
        return np.stack(list(self.inputs()))

    def pixels(self, inputs: np.ndarray) -> np.ndarray:
        """Pixels, uint8, of inputs [..., H, W, 3]."""
        return images.displayed(inputs, self.preprocess, self.channels)

    @property
    def names(self) -> list[str]:
        """Names of the files, without their endings."""
        return [file.stem for file in self.files]

    def groups(self, title: Callable[[int], str]) -> list[str] | None:
        """The title of each photo's class, or its folder; None if all are the same."""
        folders = [file.absolute().parent.name for file in self.files]
        named = [
            folder if label is None else title(label)
            for label, folder in zip(self.labels, folders, strict=True)
        ]
        return named if len(set(named)) > 1 else None


def find(paths: Sequence[str], preprocess: Preprocess, class_names: Sequence[str] | None) -> Photos:
    """Finds images; their class is that of the folder, or the WordNet id of the file's name."""
    files = images.find(list(paths), sys.stderr)
    places = _places(class_names or ())
    return Photos(tuple(files), tuple(_label(file, places) for file in files), preprocess)


def _places(class_names: Sequence[str]) -> dict[str, int]:
    """Places of classes by their names, and by the WordNet ids at their beginnings."""
    by_name = {normal(name): place for place, name in enumerate(class_names)}
    ids = ((_SYNSET.match(name), place) for name, place in by_name.items())
    return {found[0]: place for found, place in ids if found} | by_name


def _label(file: Path, places: dict[str, int]) -> int | None:
    synset = _SYNSET.match(file.name)
    names = [normal(file.absolute().parent.name), *([synset[0]] if synset else [])]
    return next((places[name] for name in names if name in places), None)


THUMBNAIL = 56  # pixels, the longer side
Progress = Callable[[str, int, int], None]  # what, done, in all


class Outputs(NamedTuple):
    features: np.ndarray  # [N, D] float32, the head's input
    logits: np.ndarray | None  # [N, C] float32; None without a head of images
    thumbnails: np.ndarray  # uint8 [N, h, w, 3]


def compute_outputs(model: Any, photos: Photos, progress: Progress) -> Outputs:
    """Computes finite features and logits of all photos, in chunks."""

    def compute(model: Any, images: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        features = model.features(images)
        logits = model.classify(features) if num_image_classes(model) else None
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
        if values is not None and not (good := np.isfinite(values).all(axis=1)).all():
            first, number = photos.files[int(np.argmin(good))], int((~good).sum())
            rule = f"of {first}, and of {number:,} images in all, are not finite."
            raise UserError(rule, field=f"The {name}", cure="The weights are damaged.")
    return Outputs(features, logits, np.stack(thumbnails))
