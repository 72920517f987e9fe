"""Splits that have every class in the proportion in which it is in all images."""

from __future__ import annotations

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.prepare.splits import REST, Splits


def stratified(classes: np.ndarray, splits: Splits) -> dict[str, np.ndarray]:
    """Places in `classes` of each split, rising; all of them, each in one split.

    Of a class with n of all N images the first k splits with a number, which together take T, have
    n T / N, rounded down or up: up where most is cut off, of equal ones where an image comes first,
    so that each split has its number. One image of each class is always in the rest: a class with
    one image is there alone, and of one with two at most one is in another split. Where so many
    classes are that small that the others must give more, they do, again in proportion.

    Args:
      classes: int [N], of images in the order of the set. Of a class the first go to the split that
        is named first.

    Raises:
      UserError: not so many images can be given away.
    """
    total = len(classes)
    _, first, member, counts = np.unique(
        classes, return_index=True, return_inverse=True, return_counts=True
    )
    given = np.zeros(len(counts), np.int64)
    ends = []  # of each split, among the images of each class
    taken = 0
    for name, number in splits:
        if number is not None:
            _refuse_too_many(name, number, splits, int((counts - 1 - given).sum()), len(counts))
            taken += number
            given = given + _quotas(counts, given, number, taken, total, first)
            ends.append((name, given))
    within = _places_in_class(member, counts)
    found = {name: np.zeros(0, np.int64) for name, _ in splits}
    start = np.zeros(len(counts), np.int64)
    for name, end in ends:
        found[name] = np.flatnonzero((within >= start[member]) & (within < end[member]))
        start = end
    (rest,) = (name for name, number in splits if number is None)
    found[rest] = np.flatnonzero(within >= start[member])
    return found


def _quotas(
    counts: np.ndarray, given: np.ndarray, number: int, taken: int, total: int, first: np.ndarray
) -> np.ndarray:
    """int64 [classes], how many of each class are in a split of this number."""
    room = counts - 1 - given
    exact = counts * taken - given * total  # in parts of 1 / total
    quotas = np.clip(exact // total, 0, room)
    # Earlier splits may have got more than their parts, and these classes now have less.
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


def _places_in_class(member: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 [N], how many images of its class are before each."""
    by_class = np.argsort(member, kind="stable")
    within = np.empty(len(member), np.int64)
    within[by_class] = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts)
    return within


def _refuse_too_many(name: str, number: int, splits: Splits, room: int, classes: int) -> None:
    if number > room:
        raise UserError(
            f"--stratify leaves one image of each of the {classes:,} classes for the {REST}, so "
            f"{room:,} can be in {name}, and --splits wants {number:,}: "
            f"--splits={name}={room} would be the most."
        )
