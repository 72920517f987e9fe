"""Curves with more points than a picture can show.

The picture is cut into columns of equally many steps, from 0 to the last one.
"""

import math
from collections.abc import Iterator
from itertools import groupby

from vit_jax.store.runs import Series


def is_dense(series: Series, columns: int) -> bool:
    """Whether there are more points than `columns` lowest and highest ones."""
    return len(series.steps) > 2 * columns


def thin(series: Series, *, last_step: int, columns: int) -> Series:
    """Keeps the last point and at most 3 a column: the lowest, the highest and the first NaN.

    So peaks and gaps remain, and each point that is left was logged as it is.
    """
    if not is_dense(series, columns):
        return series
    kept = {len(series.steps) - 1}
    for points in _columns(series, last_step, columns):
        finite = [i for i in points if not math.isnan(series.values[i])]
        if finite:
            kept.add(min(finite, key=series.values.__getitem__))
            kept.add(max(finite, key=series.values.__getitem__))
        kept.update([i for i in points if math.isnan(series.values[i])][:1])
    order = sorted(kept)
    return Series([series.steps[i] for i in order], [series.values[i] for i in order])


def means(series: Series, *, last_step: int, columns: int) -> Series:
    """A point for each column: the mean of its finite values, at the middle one of its steps."""
    averaged = Series([], [])
    for points in _columns(series, last_step, columns):
        finite = [v for v in (series.values[i] for i in points) if not math.isnan(v)]
        averaged.steps.append(series.steps[points[len(points) // 2]])
        averaged.values.append(math.fsum(finite) / len(finite) if finite else math.nan)
    return averaged


def _columns(series: Series, last_step: int, columns: int) -> Iterator[list[int]]:
    """The positions of the points in each column that has any."""

    def column(i: int) -> int:
        return series.steps[i] * columns // (last_step + 1)

    for _, points in groupby(range(len(series.steps)), key=column):
        yield list(points)
