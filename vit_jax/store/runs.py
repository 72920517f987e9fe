"""The contents of work directories, as a report shows them."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import workdir
from vit_jax.store.metrics_file import MetricsFile

METRICS_FILE = "metrics.jsonl"

# Larger numbers precede NaN in a diverging run, and would flatten all others in a plot.
LARGEST = 1e30


class Series(NamedTuple):
    """A number over the steps at which it was logged, in order; NaN where it was not finite."""

    steps: list[int]
    values: list[float]


class Run(NamedTuple):
    """The contents of a work directory.

    Attributes:
      folder: the work directory.
      name: the end of its path, long enough to differ from the other runs'.
      series: by key of metrics.jsonl.
      fields: its config and data fingerprint, "optim.lr" -> JSON; empty without a config.json.
      starts: config.json's record of each start, the newest last.
      planned_steps: steps of the whole run; None if neither its starts nor its config give them.
    """

    folder: epath.Path
    name: str
    series: dict[str, Series]
    fields: dict[str, str]
    starts: list[dict[str, Any]]
    planned_steps: int | None

    @property
    def last_step(self) -> int:
        """The last logged step; 0 if nothing was logged."""
        return max((series.steps[-1] for series in self.series.values()), default=0)


def read_all(folders: Sequence[epath.Path]) -> list[Run]:
    """One run per folder. UserError if one is not a work directory, or none has any numbers."""
    runs = [read(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    if not any(run.series for run in runs):
        where = str(folders[0]) if len(runs) == 1 else f"None of the {len(runs)} runs"
        raise UserError(
            f"{where} has {'not ' if len(runs) == 1 else ''}logged anything yet: there is no whole "
            f"row in {METRICS_FILE}. Rows come every log.every_steps steps; try again then."
        )
    return runs


def read(folder: epath.Path, name: str) -> Run:
    """The run in a folder. UserError if it is not a work directory, or damaged."""
    has_config = _check_folder(folder)
    document = workdir.read_document(folder) if has_config else {}
    rows = rows_by_step(folder)
    with damage_named(folder):
        config, starts = document.get("config", {}), list(document.get("runs", []))
        fields = workdir.flatten(config)
        if document:
            fields |= workdir.flatten({"data fingerprint": document["fingerprint"]})
        series = _series(rows)
        if not all(isinstance(start, dict) for start in starts):
            raise TypeError("its list of runs has other entries than objects")
        return Run(folder, name, series, fields, starts, _planned_steps(config, starts))


@contextlib.contextmanager
def damage_named(folder: epath.Path) -> Iterator[None]:
    """Turns exceptions from reading a damaged work directory into a UserError that names it."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{folder} is damaged: its {workdir.CONFIG_FILE} or {METRICS_FILE} is not as training "
            f"writes it ({type(error).__name__}: {error}). Restore it, or leave this run out."
        ) from error


def short_names(folders: Sequence[epath.Path]) -> list[str]:
    """The shortest ends of the folders' paths that differ: a/seed0, b/seed0."""
    parts = [folder.parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _check_folder(folder: epath.Path) -> bool:
    """Whether the folder has a config.json; UserError if it is not a work directory."""
    if not folder.exists():
        raise UserError(f"There is no folder {folder}: give the --workdir of a run.")
    if not folder.is_dir():
        raise UserError(
            f"{folder} is a file: give work directories. A pattern with a slash at its end, such "
            "as runs/*/, stands for folders alone."
        )
    if (folder / workdir.CONFIG_FILE).exists():
        return True
    if (folder / METRICS_FILE).exists():
        return False
    inside = sorted(child for child in folder.iterdir() if (child / METRICS_FILE).exists())
    instead = f" Runs are below it: give {folder}/*/." if inside else " Leave it out."
    raise UserError(
        f"{folder} is not a work directory: it has neither {METRICS_FILE} nor "
        f"{workdir.CONFIG_FILE}.{instead}"
    )


def rows_by_step(folder: epath.Path) -> dict[int, dict[str, Any]]:
    """Logged numbers of each step; of several rows of one step the last with a number counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in MetricsFile(folder / METRICS_FILE).rows():
        by_step.setdefault(row["step"], {}).update(row)
    return by_step


def _series(by_step: Mapping[int, Mapping[str, Any]]) -> dict[str, Series]:
    """Numbers over the steps, by key; NaN for null and for huge ones."""
    by_key: dict[str, Series] = {}
    for step in sorted(by_step):
        for key, value in by_step[step].items():
            if key != "step":
                series = by_key.setdefault(key, Series([], []))
                series.steps.append(step)
                is_shown = value is not None and abs(value) < LARGEST
                series.values.append(float(value) if is_shown else math.nan)
    return by_key


def _planned_steps(config: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> int | None:
    if starts and starts[-1].get("total_steps"):
        return int(starts[-1]["total_steps"])
    total, source = config.get("total", {}), config.get("input", {})
    if total.get("steps"):
        return int(total["steps"])
    examples = total.get("examples")
    if total.get("epochs") and source.get("num_examples"):
        examples = total["epochs"] * source["num_examples"]
    batch_size = source.get("batch_size")
    return round(examples / batch_size) if examples and batch_size else None
