"""Pseudo-labels: what a model says of images without labels, in a file, and images with these.

`vit-jax evaluate --pseudo_labels FILE` writes the file for `input.pseudo_labels`, as
Noisy Student does (arXiv 1911.04252). It is one of numpy.savez, without pickled objects:

    examples       int64   [n]     indices of the chosen images in their data, rising
    copies         int32   [n]     how often each is there, at least once
    classes        int32   [n, K]  its most probable classes, the most probable one first
    probabilities  float32 [n, K]  theirs, of a softmax over all C classes
    about          a text          JSON, the fields of About
"""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json
from vit_jax.data import files
from vit_jax.data.label_index import Labels, single
from vit_jax.data.source import DerivedSource, Example, SelectedSource, Source, digest

FORMAT = "vit_jax pseudo-labels 1"
HOW_TO_WRITE = "vit-jax evaluate --checkpoint ... --pseudo_labels=FILE"
_DTYPES = {"examples": "i8", "copies": "i4", "classes": "i4", "probabilities": "f4"}


@dataclasses.dataclass(frozen=True)
class About:
    """What the labels are of, and what made them.

    Attributes:
      fingerprint: of the data, opened without labels.
      num_examples: of the data, chosen or not.
      class_names: of the C classes; None if they have numbers alone.
      written_by: for people: weights, data, thresholds.
    """

    fingerprint: str
    num_examples: int
    num_classes: int
    class_names: tuple[str, ...] | None
    written_by: dict[str, Any]


class PseudoLabels(NamedTuple):
    """The contents of a file."""

    examples: np.ndarray
    copies: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray
    about: About

    @property
    def num_examples(self) -> int:
        """The number of examples to train on: each image as often as it has copies."""
        return int(self.copies.sum(dtype=np.int64))


class PseudoLabelled(DerivedSource):
    """The chosen images of `source`, each as often as it has copies, with their pseudo-labels.

    Weights of an image's labels are their probabilities, divided by the sum of those that are kept:
    it weighs as much as an image with one label. Copies are examples of their own, each augmented
    by other random numbers.
    """

    def __init__(self, source: Source, labels: PseudoLabels):
        self._pseudo_labels = labels
        self._ends = np.cumsum(labels.copies, dtype=np.int64)
        content = [digest(array.tobytes()) for array in labels[:4]]
        super().__init__(
            SelectedSource(
                source,
                labels.num_examples,
                lambda indices: labels.examples[self._rows(indices)],
                rule=f"pseudo-labels {labels.about.class_names} {content}",
            )
        )
        self.name = f"{source.name} with pseudo-labels"
        self.num_classes = labels.about.num_classes
        self.class_names = labels.about.class_names
        self.max_labels = labels.classes.shape[1]
        self.weighted = self.max_labels > 1

    def read(self, indices: np.ndarray) -> list[Example]:
        rows = self._rows(indices)
        classes = self._pseudo_labels.classes[rows].tolist()
        weights: list[list[float]] = [[]] * len(rows)
        if self.weighted:
            found = self._pseudo_labels.probabilities[rows]
            weights = (found / found.sum(axis=1, keepdims=True)).tolist()
        return [
            example._replace(labels=tuple(image_classes), weights=tuple(image_weights))
            for example, image_classes, image_weights in zip(
                self.source.read(indices), classes, weights, strict=True
            )
        ]

    def stored_labels(self) -> Labels:
        """The most probable class of each, alone: what is chosen by class is chosen by it."""
        return single(np.repeat(self._pseudo_labels.classes[:, 0], self._pseudo_labels.copies))

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        """Examples, int64 [n] -> the rows of their images in the file, int64 [n]."""
        return np.searchsorted(self._ends, indices, side="right")


def open_pseudo_labelled(
    source: Source, path: str, *, num_classes: int | None, label_weights: bool, where: str
) -> PseudoLabelled:
    """The images of `source`, opened without labels, that have pseudo-labels in a file.

    UserError, which names the field of the section `where`, if the file cannot be read, was written
    for other data, has not the declared `num_classes` (None: any), or has probabilities that
    `label_weights` forbids to use.
    """
    labels = read(path, where=where)
    about = labels.about
    if num_classes not in (None, about.num_classes):
        raise UserError(
            f"input.num_classes={num_classes}, but {where}.pseudo_labels={path} is of "
            f"{about.num_classes:,} classes. Correct it, or write the file by a model with these "
            "classes."
        )
    if about.fingerprint != source.fingerprint:
        was = about.written_by.get("data", "other data")
        raise UserError(
            f"{where}.pseudo_labels={path} was written for {about.num_examples:,} images of {was}; "
            f"the {source.num_examples:,} images of {where} are not the same, or not in the same "
            f"order. Give {where} the source, data_dir and split that it was written for, or write "
            f"it again: {HOW_TO_WRITE}"
        )
    if labels.classes.shape[1] > 1 and not label_weights:
        raise UserError(
            f"input.label_weights=false would leave out the probabilities of {where}.pseudo_labels="
            f"{path}, which say which of an image's {labels.classes.shape[1]} classes is how "
            "likely. Set it to true, or write hard labels by --top_k=1."
        )
    return PseudoLabelled(source, labels)


def read(path: str, *, where: str) -> PseudoLabels:
    """Reads a file. UserError if it is not there, damaged, or not one of pseudo-labels."""
    field = f"{where}.pseudo_labels={path}"
    try:
        content = files.read(files.expanded(path))
    except OSError as error:
        raise UserError(
            f"{field} cannot be read ({error.strerror}). It is a file that this writes: "
            f"{HOW_TO_WRITE}"
        ) from error
    try:
        return _parsed(content)
    except files.NPZ_FAULTS as error:
        raise UserError(
            f"{field} is damaged, or not a file of pseudo-labels ({error}). Write it by: "
            f"{HOW_TO_WRITE}"
        ) from error


def is_pseudo_labels(path: Path) -> bool:
    """Whether a local file is one of pseudo-labels, whole or not."""
    try:
        with np.load(path) as arrays:
            return _about(arrays) is not None
    except files.NPZ_FAULTS:
        return False


def write(path: Path, labels: PseudoLabels) -> None:
    """Writes the file at once or not at all. OSError if it cannot."""
    arrays: dict[str, Any] = {
        name: np.asarray(getattr(labels, name), dtype) for name, dtype in _DTYPES.items()
    }
    about = json.dumps({"format": FORMAT, **dataclasses.asdict(labels.about)})
    files.write_npz(path, about=about, **arrays)


def _about(arrays: Any) -> dict[str, Any]:
    """The fields of About of an open file. ValueError if it is not one of pseudo-labels."""
    about = parse_json(str(arrays["about"]).encode())
    if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    return about


def _parsed(content: bytes) -> PseudoLabels:
    """ValueError and the like if it is not what `write` has written."""
    with np.load(io.BytesIO(content)) as arrays:  # zip checks the CRC of what is read
        fields = _about(arrays)
        names = fields.pop("class_names")
        about = About(class_names=None if names is None else tuple(names), **fields)
        found = {name: arrays[name] for name in _DTYPES}
    counts = (about.num_examples, about.num_classes, len(names or ()))
    if not all(type(count) is int for count in counts) or counts[2] not in (0, counts[1]):
        raise ValueError("its counts do not fit together")
    examples, copies, classes, probabilities = found.values()
    if {name: array.dtype for name, array in found.items()} != {
        name: np.dtype(dtype) for name, dtype in _DTYPES.items()
    }:
        raise ValueError("its arrays have other types")
    if not (
        examples.ndim == 1
        and copies.shape == examples.shape
        and classes.ndim == 2
        and classes.shape == probabilities.shape
        and len(classes) == len(examples)
        and classes.size
    ):
        raise ValueError("its arrays do not fit together")
    if not (
        (np.diff(examples) > 0).all()
        and examples[0] >= 0
        and examples[-1] < about.num_examples
        and (copies > 0).all()
        and (classes >= 0).all()
        and (classes < about.num_classes).all()
        and (probabilities >= 0).all()  # NaN is not either
        and (probabilities <= 1).all()
        and (probabilities[:, 0] > 0).all()
    ):
        raise ValueError("its numbers are outside of what they can be")
    return PseudoLabels(**found, about=about)
