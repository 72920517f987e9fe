"""Results of a sweep: a table for people, results.csv for programs."""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from etils import epath

from vit_jax.core.files import write_text
from vit_jax.core.screen import aligned, format_duration
from vit_jax.core.tables import csv_text
from vit_jax.store import workdir
from vit_jax.store.metrics_file import RESERVED
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.progress import PointProgress

CSV_FILE = "results.csv"
SEED = "seed"


def write_csv(file: epath.Path, rows: Sequence[PointProgress], metric: str) -> None:
    """Writes a row for each point, the best first. UserError if it cannot be written."""
    axes, keys = list(rows[0].point.values), _final_keys(rows)
    table: list[list[Any]] = [[*axes, "state", *keys, "step", "train_seconds", "workdir"]]
    for row in ordered(rows, metric):
        numbers = [row.numbers.get(key, "") for key in keys]
        ends = [row.step, round(row.train_secs, 1), row.folder]
        table.append([*(row.point.values[a] for a in axes), row.state, *numbers, *ends])
    try:
        write_text(file, csv_text(table))
    except OSError as error:
        raise workdir.unwritable(file.parent, error) from error


def table(rows: Sequence[PointProgress], metric: str) -> list[str]:
    """Lines of the results: values on the axes, metric, losses, steps, time; the best first."""
    axes = list(rows[0].point.values)
    losses = [key for key in _final_keys(rows) if key.endswith("/loss") and "_ema/" not in key]
    keys = list(dict.fromkeys([metric, *losses]))
    cells = [
        [
            *(row.point.values[axis] for axis in axes),
            *(progress.shown_number(key, row.numbers.get(key)) for key in keys),
            f"{row.step:,}",
            format_duration(row.train_secs),
            "" if row.state == "finished" else row.state,
        ]
        for row in ordered(rows, metric)
    ]
    head = [*axes, *keys, "step", "time", ""]
    return aligned(head, cells, left={*range(len(axes)), len(head) - 1})


def over_seeds(rows: Sequence[PointProgress], metric: str) -> list[str]:
    """Lines of mean, standard deviation and range over seeds; [] without several seeds."""
    axes = [axis for axis in rows[0].point.values if axis != SEED]
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.state == "finished" and math.isfinite(row.numbers.get(metric, math.nan)):
            values = tuple(row.point.values[axis] for axis in axes)
            groups.setdefault(values, []).append(row.numbers[metric])
    if not axes or max(map(len, groups.values()), default=0) < 2:
        return []
    best_first = sorted(
        groups.items(),
        key=lambda item: statistics.mean(item[1]),
        reverse=progress.is_better_high(metric),
    )
    shown = functools.partial(progress.shown_number, metric)
    cells = [
        [
            *values,
            shown(statistics.mean(numbers)),
            shown(statistics.stdev(numbers)) if len(numbers) > 1 else "-",
            f"{shown(min(numbers))} to {shown(max(numbers))}",
            str(len(numbers)),
        ]
        for values, numbers in best_first
    ]
    head = [*axes, f"mean {metric}", "std", "range", "seeds"]
    return aligned(head, cells, left=range(len(axes)))


def ordered(rows: Sequence[PointProgress], metric: str) -> list[PointProgress]:
    """Sorts rows: the best first, then those that have not ended or have failed."""
    sign = -1 if progress.is_better_high(metric) else 1

    def place(row: PointProgress) -> tuple[bool, float, int]:
        value = row.numbers.get(metric, math.nan)
        ended = row.state == "finished" and math.isfinite(value)
        return not ended, sign * value if ended else 0.0, row.point.number

    return sorted(rows, key=place)


def _final_keys(rows: Sequence[PointProgress]) -> list[str]:
    """Keys of the training loss and the evaluations."""
    keys = dict.fromkeys(key for row in rows for key in row.numbers)
    return [k for k in keys if k == progress.LOSS or k.partition("/")[0] not in RESERVED]
