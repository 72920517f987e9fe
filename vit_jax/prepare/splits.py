"""Splits as --splits names them, and stratified splits: each class in proportion."""

from __future__ import annotations

import re

import numpy as np

from vit_jax.core.errors import UserError

REST = "rest"
ALL = "all"  # the splits of a data set, to TFDS too


class Splits(tuple[tuple[str, int | None], ...]):
    """Names and numbers of examples, None for all that remain: "test=100,train=rest"."""

    @classmethod
    def parse(cls, text: str) -> Splits:
        """The splits of a flag's value. UserError."""
        items = [item.partition("=") for item in text.split(",")]
        names = [name for name, _, _ in items]
        if ALL in names:
            raise UserError(
                f"--splits={text}: {ALL} means all splits, and cannot be the name of one."
            )
        for name, _, number in items:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not (
                number == REST or re.fullmatch(r"[1-9]\d*", number)
            ):
                raise UserError(
                    f"--splits={text}: {name}={number} is not a name and a number, as in "
                    "test=25600,validation=25600,train=rest."
                )
        if len(set(names)) < len(names) or [n for _, _, n in items].count(REST) != 1:
            raise UserError(f"--splits={text}: each name once, and one of them takes the {REST}.")
        return cls((name, None if number == REST else int(number)) for name, _, number in items)

    def places(self, total: int) -> dict[str, np.ndarray]:
        """Consecutive places of `total` images, by split; for the rest at least 0."""
        taken = sum(number or 0 for _, number in self)
        sizes = [total - taken if number is None else number for _, number in self]
        pieces = np.split(np.arange(total), np.cumsum(sizes)[:-1])
        return {name: piece for (name, _), piece in zip(self, pieces, strict=True)}


def stratified(classes: np.ndarray, splits: Splits) -> dict[str, np.ndarray]:
    """Places in `classes` of each split, rising; every place is in exactly one split.

    Of a class with n of all N images, the first k splits with a number, which together take T, get
    n T / N, rounded down or up: up where most is cut off, in ties where an image comes first, so
    that each split has its number. One image of each class is always in the rest: a class with one
    image is in the rest alone, and of two images at most one is in another split. Where so many
    classes are so small that the others must give more, they do, again in proportion.

    Args:
      classes: int [N], of the images in the order of the set. The first images of a class go to the
        split that is named first.

    Raises:
      UserError: a split wants more images than can be given away.
    """
    total = len(classes)
    _, first, member, counts = np.unique(
        classes, return_index=True, return_inverse=True, return_counts=True
    )
    within = _ranks_in_class(member, counts)
    start = np.zeros(len(counts), np.int64)  # of the split, among the images of each class
    places = {name: np.zeros(0, np.int64) for name, _ in splits}
    taken = 0
    for name, number in splits:
        if number is None:
            continue
        room = int((counts - 1 - start).sum())
        if number > room:
            raise UserError(
                f"--stratify leaves one image of each of the {len(counts):,} classes for the "
                f"{REST}, so {room:,} can be in {name}, and --splits wants {number:,}: "
                f"--splits={name}={room} would be the most."
            )
        taken += number
        end = start + _quotas(counts, start, number, taken, total, first)
        places[name] = np.flatnonzero((within >= start[member]) & (within < end[member]))
        start = end
    (rest,) = (name for name, number in splits if number is None)
    places[rest] = np.flatnonzero(within >= start[member])
    return places


def _quotas(
    counts: np.ndarray, given: np.ndarray, number: int, taken: int, total: int, first: np.ndarray
) -> np.ndarray:
    """int64 [classes], images of each class in a split of this number."""
    room = counts - 1 - given
    exact = counts * taken - given * total  # in units of 1 / total
    quotas = np.clip(exact // total, 0, room)
    # Earlier splits may have got more than their share, so that these classes now have less.
    order = np.lexsort((first, -(exact - quotas * total)))
    while short := number - int(quotas.sum()):
        if short < 0:
            quotas[order[quotas[order] > 0][short:]] -= 1
            continue
        some = order[(room > quotas)[order]]
        if short <= len(some):
            quotas[some[:short]] += 1
        else:  # small classes have given all they can: the others give more
            more = counts[some] * short // int(counts[some].sum())
            quotas[some] += np.minimum(np.maximum(more, 1), (room - quotas)[some])
    return quotas


def _ranks_in_class(member: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 [N], number of earlier images of the same class."""
    by_class = np.argsort(member, kind="stable")
    within = np.empty(len(member), np.int64)
    within[by_class] = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts)
    return within
