"""The result of a transfer: on the screen, in results.json and in results.csv."""

import functools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.core.tables import csv_text
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.results import SEED
from vit_jax.tools.lab.transfer.choice import Choice
from vit_jax.tools.lab.transfer.task import Splits

JSON_FILE, CSV_FILE = "results.json", "results.csv"
_COUNTS = ("examples", "_images")  # endings of numbers that are no scores


class OverSeeds(NamedTuple):
    """A number of the test over seeds; std is the sample's (n - 1), None with one seed."""

    mean: float
    std: float | None
    values: dict[str, float]  # by seed


class TransferResult(NamedTuple):
    """What came out.

    Attributes:
      checkpoint: what training started from, as the command gave it.
      weights: the checkpoint that it named when the transfer began; None: from scratch.
      config: the config file.
      splits: the parts of the training data.
      tested: the evaluation of the test: its name, split, source and data_dir.
      choice: what was chosen, and from what.
      key: the number of the test that stands for the result, "test/accuracy".
      test: numbers of the test by name, over the seeds of trainings that have finished.
      seeds: how many trainings there are to be.
      failures: trainings of both sweeps that did not finish, and why.
    """

    checkpoint: str
    weights: str | None
    config: str
    splits: Splits
    tested: dict[str, str | None]
    choice: Choice
    key: str
    test: dict[str, OverSeeds]
    seeds: int
    failures: tuple[str, ...] = ()

    @property
    def scores(self) -> dict[str, OverSeeds]:
        """The numbers of the test that are no counts."""
        return {name: n for name, n in self.test.items() if not name.endswith(_COUNTS)}

    @property
    def score(self) -> OverSeeds | None:
        """The number of `key`; None if no training has finished."""
        return self.test.get(self.key)


def over_seeds(rows: Sequence[PointProgress], evaluation: str) -> dict[str, OverSeeds]:
    """The test's numbers of the trainings that have finished, by name."""
    by_name: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.state != "finished":
            continue
        seed = row.point.values.get(SEED) or row.point.common[SEED]
        for name, number in row.numbers.items():
            if name.startswith((f"{evaluation}/", f"{evaluation}_ema/")) and math.isfinite(number):
                by_name.setdefault(name, {})[seed] = number
    return {
        name: OverSeeds(
            statistics.mean(values.values()),
            statistics.stdev(values.values()) if len(values) > 1 else None,
            values,
        )
        for name, values in by_name.items()
    }


def write(folder: epath.Path, result: TransferResult, rows: Mapping[str, Any]) -> None:
    """Writes results.json and results.csv; `rows`: of each sweep. UserError if it cannot."""
    document = {
        **result._asdict(),
        "splits": result.splits._asdict(),
        "choice": result.choice._asdict()
        | {"candidates": [each._asdict() for each in result.choice.candidates]},
        "test": {name: numbers._asdict() for name, numbers in result.test.items()},
    }
    try:
        write_text(folder / JSON_FILE, json.dumps(document, indent=2) + "\n")
        write_text(folder / CSV_FILE, _csv(result, rows))
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def read(folder: epath.Path) -> dict[str, Any] | None:
    """The contents of results.json; None if there is none. UserError if it is damaged."""
    try:
        document = parse_json((folder / JSON_FILE).read_bytes())
        return dict(document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder / JSON_FILE} is damaged ({error}): the command that wrote it, given again, "
            "writes it anew."
        ) from error


def _csv(result: TransferResult, rows: Mapping[str, Sequence[PointProgress]]) -> str:
    """A row for each training: which sweep, values, seed, state, numbers, and where it is."""
    axes = list(result.choice.chosen)
    every = [row for each in rows.values() for row in each]
    evaluated = [result.choice.key.partition("/")[0], result.key.partition("/")[0]]
    numbers = [
        name
        for name in dict.fromkeys(name for row in every for name in row.numbers)
        if name.partition("/")[0] in evaluated
    ]
    table: list[list[Any]] = [
        ["sweep", *axes, SEED, "state", *numbers, "step", "train_seconds", "workdir"]
    ]
    for sweep, each in rows.items():
        for row in each:
            fields = row.point.common | row.point.values
            table.append(
                [
                    sweep,
                    *(fields[axis] for axis in axes),
                    fields[SEED],
                    row.state,
                    *(row.numbers.get(name, "") for name in numbers),
                    row.step,
                    round(row.train_secs, 1),
                    row.folder,
                ]
            )
    return csv_text(table)


def spell(key: str, number: OverSeeds) -> str:
    """ "97.21 % ± 0.15 (3 seeds)", or without a deviation where there is one seed."""
    shown = functools.partial(progress.shown_number, key)
    seeds = len(number.values)
    if number.std is None:
        return f"{shown(number.mean)} (1 seed)"
    std = f"{100 * number.std:.2f}" if key.endswith("accuracy") else f"{number.std:.2g}"
    return f"{shown(number.mean)} ± {std} ({seeds} seeds)"


def lines(result: TransferResult) -> Iterable[str]:
    """What a person reads at the end: the choice, then the test."""
    choice = result.choice
    if choice.chosen:
        chosen = ", ".join(f"{field}={value}" for field, value in choice.chosen.items())
        shown = progress.shown_number(choice.key, choice.score)
        yield f"chosen   {chosen}, by {choice.key} {shown} on {result.splits.held_out}"
        yield from (f"note     {sentence}" for sentence in choice.at_edge)
    else:
        yield "chosen   nothing: there were no lists of values, so the config's own were used"
    for name, numbers in result.scores.items():
        yield f"test     {name} {spell(name, numbers)}"
    if not result.test:
        yield "test     no training has finished"
