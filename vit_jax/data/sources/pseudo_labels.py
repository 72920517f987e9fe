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

from vit_jax.core.errors import UserError, reading
from vit_jax.core.files import parse_json
from vit_jax.data import files
from vit_jax.data.source import (
    DerivedSource,
    Example,
    Labels,
    SelectedSource,
    Source,
    digest,
    single,
)

FORMAT = "vit_jax pseudo-labels 1"
HOW_TO_WRITE = "vit-jax evaluate --checkpoint ... --pseudo_labels=FILE"
_DTYPES = {"examples": "i8", "copies": "i4", "classes": "i4", "probabilities": "f4"}


@dataclasses.dataclass(frozen=True)
class About:
    """The images that the labels are of, and the model that made them."""

    fingerprint: str  # of the data, opened without labels
    num_examples: int  # of the data, chosen or not
    num_classes: int
    class_names: tuple[str, ...] | None  # of the C classes; None if they have numbers alone
    written_by: dict[str, Any]  # for people: weights, data, thresholds


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

    Weights of an image's labels are their probabilities, divided by the sum of those that are kept.
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

    def changed(self, index: int, example: Example) -> Example:
        row = self._rows(np.array(index))
        labels, weights = self._pseudo_labels.classes[row], list[float]()
        if self.weighted:
            probabilities = self._pseudo_labels.probabilities[row]
            weights = (probabilities / probabilities.sum()).tolist()
        return example._replace(labels=tuple(labels.tolist()), weights=tuple(weights))

    def stored_labels(self) -> Labels:
        """The most probable class of each, alone: what is chosen by class is chosen by it."""
        return single(np.repeat(self._pseudo_labels.classes[:, 0], self._pseudo_labels.copies))

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        """Examples, int64 [n] -> the rows of their images in the file, int64 [n]."""
        return np.searchsorted(self._ends, indices, side="right")


def open_pseudo_labelled(
    source: Source, path: str, *, num_classes: int | None, label_weights: bool, where: str
) -> PseudoLabelled:
    """The images of `source`, opened without labels, that have pseudo-labels in a file."""
    labels = read(path, where=where)
    about = labels.about
    rule = ""
    if num_classes not in (None, about.num_classes):
        rule = f"is of {about.num_classes:,} classes, not of input.num_classes={num_classes}."
    elif about.fingerprint != source.fingerprint:
        theirs = f"{about.num_examples:,} images of {about.written_by.get('data', 'other data')}"
        rule = f"is of {theirs}; the {source.num_examples:,} of {where} are others, or their order."
    elif labels.classes.shape[1] > 1 and not label_weights:
        rule = (
            f"has weights of an image's {labels.classes.shape[1]} classes: --top_k=1 has one, or "
        )
        rule += "set input.label_weights=true."
    if rule:
        cure = f"Correct the field, or write the file again: {HOW_TO_WRITE}"
        raise UserError(rule, field=f"{where}.pseudo_labels", value=path, cure=cure)
    return PseudoLabelled(source, labels)


def read(path: str, *, where: str) -> PseudoLabels:
    """Reads a file. UserError if it is not there, damaged, or not one of pseudo-labels."""
    with reading(f"{where}.pseudo_labels", path, cure=f"Write it by: {HOW_TO_WRITE}"):
        try:
            return _parsed(files.read(files.expanded(path)))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"not a file of pseudo-labels ({error})") from error


def is_pseudo_labels(path: Path) -> bool:
    """Returns whether a local file is one of pseudo-labels, whole or not."""
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
    about = parse_json(str(arrays["about"]).encode())
    if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    return about


def _parsed(content: bytes) -> PseudoLabels:
    with np.load(io.BytesIO(content)) as arrays:  # zip checks the CRC of what is read
        fields = _about(arrays)
        names = fields.pop("class_names")
        about = About(class_names=None if names is None else tuple(names), **fields)
        found = {name: arrays[name] for name in _DTYPES}
    num_images, num_classes, num_names = about.num_examples, about.num_classes, len(names or ())
    examples, copies, classes, probabilities = found.values()
    is_whole = (
        all(type(count) is int for count in (num_images, num_classes))
        and num_names in (0, num_classes)
        and all(found[name].dtype == np.dtype(dtype) for name, dtype in _DTYPES.items())
        and classes.size
        and examples.shape == copies.shape == classes.shape[:1]
        and classes.shape == probabilities.shape == (len(examples), classes.shape[-1])
        and (np.diff(examples) > 0).all()
        and 0 <= examples[0] <= examples[-1] < num_images
        and (copies > 0).all()
        and 0 <= classes.min() <= classes.max() < num_classes
        and ((probabilities >= 0) & (probabilities <= 1)).all()  # NaN is not either
        and (probabilities[:, 0] > 0).all()
    )
    if not is_whole:
        raise ValueError("its counts and arrays do not fit together")
    return PseudoLabels(**found, about=about)
