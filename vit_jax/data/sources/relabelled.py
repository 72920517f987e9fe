"""A data set with other labels than its folders or records give.

Those of a model whose classes have the same names, or those of ImageNet-1k's classes:

ReaL          a list of classes for each image of ImageNet's validation set, by its number;
              images without any are left out (arXiv 2006.07159)
ImageNet-V2   folders are numbers of classes, "0" to "999" (arXiv 1902.10811)
ObjectNet     of 313 folders 113 are one or several of ImageNet's classes; the others are left
              out (objectnet.dev)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.core import synsets
from vit_jax.core.errors import UserError, reading
from vit_jax.core.files import parse_json
from vit_jax.data import files, label_index
from vit_jax.data.source import (
    NO_LABEL,
    DerivedSource,
    Example,
    Labels,
    Source,
    digest,
    select_examples,
)

CLASSES = 1000
VALIDATION_IMAGES = 50_000
MAX_LIST_BYTES = 2**26  # of real.json, which has 1 MB
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.")


class ByName(DerivedSource):
    """The examples of `source`, with labels of the classes `names`, among which its own are.

    Classes of which it has no images, and any order of them, are right.
    """

    def __init__(self, source: Source, names: Sequence[str]):
        super().__init__(source)
        places = {name: place for place, name in enumerate(names)}
        self._places = np.asarray([places[name] for name in source.class_names or ()], np.int32)
        self.num_classes, self.class_names = len(names), tuple(names)
        self.fingerprint = digest(f"{source.fingerprint}: {self._places.tolist()} of {len(names)}")
        of = f"{len(self._places)} of the model's {len(names)}"
        self.notes = (*source.notes, f"its classes are {of}, matched by name")

    def changed(self, index: int, example: Example) -> Example:
        labels = self._renumbered(np.array(example.labels, int))
        return example._replace(labels=tuple(labels.tolist()))

    def stored_labels(self) -> Labels | None:
        stored = self.source.stored_labels()
        return stored and stored._replace(labels=self._renumbered(stored.labels))

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        """The labels as places in `names`; what is not a class of the source, as NO_LABEL."""
        is_class = (labels >= 0) & (labels < len(self._places))
        return np.where(is_class, self._places[labels * is_class], NO_LABEL).astype(np.int32)


class Relabelled(DerivedSource):
    """The examples of `source` that have a label in `labels`, with these labels."""

    def __init__(self, source: Source, labels: Labels, *, rule: str):
        counts = np.diff(labels.offsets)
        kept = np.flatnonzero(counts)
        super().__init__(select_examples(source, kept))
        self._labels = labels.take(kept)
        self.num_classes, self.class_names = CLASSES, tuple(synsets.names_1k().values())
        self.max_labels, self.weighted = int(counts.max(initial=1)), False
        bits = digest(self._labels.offsets.tobytes() + self._labels.labels.tobytes())
        self.fingerprint = digest(f"{self.source.fingerprint}: {rule} {bits}")

    def changed(self, index: int, example: Example) -> Example:
        labels = self._labels.slice(index, index + 1).labels
        return example._replace(labels=tuple(labels.tolist()), weights=())

    def stored_labels(self) -> Labels:
        return self._labels


def relabel_by_class(source: Source, kind: str, *, where: str) -> Relabelled:
    """`source` with the ImageNet classes of its own classes; `kind` is a key of KINDS."""
    number_of = {synset: number for number, synset in enumerate(synsets.names_1k())}
    with reading(f"{where}.classes", kind):
        classes = [[number_of[s] for s in KINDS[kind](name)] for name in source.class_names or ()]
    labels = [classes[label] if classes else [] for label in label_index.find(source).labels]
    if source.max_labels > 1 or not any(labels):
        rule = f"is not of {source.name}: give the folder that holds those of its classes."
        raise UserError(rule, field=f"{where}.classes", value=kind)
    return Relabelled(source, label_index.collect(labels), rule=kind)


def _class_by_number(name: str) -> tuple[str, ...]:
    if not re.fullmatch(r"\d{1,3}", name):
        raise ValueError(f"the class {name!r} is not one of that set")
    return (list(synsets.names_1k())[int(name)],)


# The WordNet ids of a class by its folder's name; ValueError for a name that the set has not.
KINDS: Mapping[str, Callable[[str], Sequence[str]]] = {
    "imagenet_v2": _class_by_number,
    "objectnet": lambda name: synsets.objectnet().get(name, ()),
}


def relabel_by_file(source: Source, path: str, *, where: str) -> Relabelled:
    """`source`, of images of ImageNet's validation set, with the labels of ReaL's file."""
    labels, names = read_real(path, f"{where}.labels={path}"), source.file_names()
    numbers = [int(m[1]) if (m := _NUMBER.search(name)) else 0 for name in names or ()]
    other = next((k for k, number in enumerate(numbers) if not 1 <= number <= len(labels)), None)
    chosen = [labels[number - 1] for number in numbers] if other is None else []
    if not any(chosen):
        rule = f"has labels for ILSVRC2012_val_00000001.JPEG to {len(labels):08}"
        if names is None:
            rule += f", and {source.name} does not keep the names of its image files."
        else:
            rule += f", and {'no image has one' if other is None else f'not for {names[other]}'}."
        cure = "Give a folder of these images, or records of them that `prepare` wrote."
        raise UserError(rule, field=f"{where}.labels", value=path, cure=cure)
    return Relabelled(source, label_index.collect(chosen), rule="labels of a file")


def read_real(path: str, where: str) -> list[list[int]]:
    """ReaL's list of classes of each validation image, in the order of their numbers."""
    cure = "ReaL's labels: real.json of https://github.com/google-research/reassessed-imagenet."
    with reading(where, cure=cure):
        data = files.read(files.expanded(path))
    with reading(where, cure=cure):
        stored: Any = parse_json(data[:MAX_LIST_BYTES])  # cut off, a longer one is no JSON
        is_list = isinstance(stored, list) and 1 <= len(stored) <= VALIDATION_IMAGES
        if not is_list or not all(
            isinstance(classes, list) and all(type(c) is int and 0 <= c < CLASSES for c in classes)
            for classes in stored
        ):
            whole = f"{CLASSES - 1}, of at most {VALIDATION_IMAGES:,} images"
            raise ValueError(f"not a list of lists of classes, 0 to {whole}")
    return stored
