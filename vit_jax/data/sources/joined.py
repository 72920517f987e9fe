"""Several sources as one, whose labels mean the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from vit_jax.core import class_names, synsets
from vit_jax.core.errors import UserError
from vit_jax.data.source import Example, Labels, Source, digest, row_offsets
from vit_jax.data.sources.splits import Slice

T = TypeVar("T")


def join_labels(parts: Sequence[Labels]) -> Labels:
    """The labels of all parts, one part behind the other."""
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Labels(row_offsets(counts), np.concatenate([part.labels for part in parts]))


def locate(ends: np.ndarray, indices: np.ndarray | int) -> tuple[Any, Any]:
    """(parts, places in them) of indices into parts that end at `ends`, int64 [parts]."""
    parts = np.searchsorted(ends, indices, side="right")
    return parts, indices - np.concatenate([[0], ends])[parts]


def read_parts(
    ends: np.ndarray, indices: np.ndarray, read: Callable[[int, np.ndarray], Sequence[T]]
) -> list[T]:
    """Items at `indices`, int64 [n], in that order; `read(part, places)` is called part by part."""
    items: dict[int, T] = {}
    parts, places = locate(ends, indices)
    for part in np.unique(parts):
        chosen = np.flatnonzero(parts == part)
        items.update(zip(chosen.tolist(), read(int(part), places[chosen]), strict=True))
    return [items[i] for i in range(len(indices))]


def class_difference(one: Source, other: Source) -> str:
    """The difference between the classes of two sources, for a message; "" if there is none.

    "n01514668" and "n01514668 cock" are the same.
    """
    names, others = one.class_names, other.class_names
    if one.num_classes != other.num_classes:
        differ = f"{one.num_classes:,} and {other.num_classes:,}"
    elif names and others and synsets.places(names, others) != tuple(range(one.num_classes)):
        differ = "not the same names, or not in the same order"
    else:
        return ""
    if names and others:
        lists = [synsets.wordnet_ids(one) or one for one in (names, others)]
        differ += f" ({class_names.difference(*lists)})"
    return differ


def check_same_classes(parts: Mapping[str, Source], field: str, cure: str) -> None:
    """UserError unless a label means the same in all parts."""
    for (name, part), (other_name, other) in itertools.combinations(parts.items(), 2):
        if differ := class_difference(part, other):
            rule = f"{name} and {other_name} have other classes: {differ}."
            raise UserError(rule, field=f"{field}:", cure=cure)


class JoinedSource(Source):
    """The examples of all `parts`, one part behind the other, as of one data set."""

    def __init__(self, parts: Sequence[Source]) -> None:
        """`parts` have the same classes."""
        self.parts = list(parts)
        self.sizes = np.array([part.num_examples for part in parts], np.int64)
        self._ends = np.cumsum(self.sizes)
        self.name = parts[0].name
        self.num_examples = int(self._ends[-1])
        self.num_classes = parts[0].num_classes
        named = [part.class_names for part in parts if part.class_names]
        self.class_names = named[0] if named else None
        self.max_labels = max(part.max_labels for part in parts)
        self.weighted = any(part.weighted for part in parts)
        self.maps, self.pixels = parts[0].maps, parts[0].pixels
        self.fingerprint = digest("\n".join(part.fingerprint for part in parts))
        self.notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        self.location = ", ".join(dict.fromkeys(p.location for p in parts if p.location))

    def read(self, indices: np.ndarray) -> list[Example]:
        return read_parts(self._ends, indices, lambda part, places: self.parts[part].read(places))

    def describe(self, index: int) -> str:
        part, place = locate(self._ends, index)
        return self.parts[part].describe(int(place))

    def file_names(self) -> list[str] | None:
        names = [part.file_names() for part in self.parts]
        known = [each for each in names if each is not None]
        return list(itertools.chain(*known)) if len(known) == len(names) else None

    def slices(self) -> list[Slice]:
        return [part for each in self.parts for part in each.slices()]

    def stamp(self) -> str:
        return digest("\n".join(part.stamp() for part in self.parts))

    def stored_labels(self) -> Labels | None:
        """The labels of all parts; None if one of them has to be read to know its own."""
        parts = [part.stored_labels() for part in self.parts]
        known = [labels for labels in parts if labels is not None]
        return join_labels(known) if len(known) == len(parts) else None
