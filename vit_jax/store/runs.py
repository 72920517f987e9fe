"""Work directories as series of numbers, for reports."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.store import workdir
from vit_jax.store.metrics import FOLLOWED_FILE, METRICS_FILE, MetricsFile
from vit_jax.store.workdir import NotARun

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
    """One run per folder that is a work directory; names the others on standard error."""
    runs, refusals = [], []
    for folder, name in zip(folders, short_names(folders), strict=True):
        try:
            runs.append(read(folder, name))
        except NotARun as error:
            refusals.append(error)
    if not runs:
        raise refusals[0]
    for refusal in refusals:
        print(f"Notice: {refusal}", file=sys.stderr)
    if not any(run.series for run in runs):
        where = str(folders[0]) if len(runs) == 1 else f"None of the {len(runs)} runs"
        has = "has not" if len(runs) == 1 else "has"
        raise UserError(f"{has} logged anything yet (log.every_steps).", field=where)
    return runs


def read(folder: epath.Path, name: str) -> Run:
    """The run in a folder. Raises UserError if it is not a work directory, or damaged."""
    has_config = _check_folder(folder)
    document = workdir.read_document(folder) if has_config else {}
    rows = rows_by_step(folder)
    with workdir.explain_damage(folder / workdir.CONFIG_FILE):
        config, starts = document.get("config", {}), list(document.get("runs", []))
        fields = workdir.flatten(config)
        if document:
            fields |= workdir.flatten({"data fingerprint": document["fingerprint"]})
        series = _series(rows)
        return Run(folder, name, series, fields, starts, _planned_steps(config, starts))


def short_names(paths: Sequence[PurePath]) -> list[str]:
    """The shortest ends of paths that differ, as far as they do: a/seed0, b/seed0."""
    parts = [path.parts or (str(path),) for path in paths]
    different = len(set(parts))
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == different:
            return names
    return [str(path) for path in paths]


def _check_folder(folder: epath.Path) -> bool:
    """Returns whether the folder has a config.json. Raises UserError for other folders."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; runs/*/ stands for folders alone.")
    if (folder / workdir.CONFIG_FILE).exists():
        return True
    if (folder / METRICS_FILE).exists():
        return False
    inside = any((child / METRICS_FILE).exists() for child in folder.iterdir())
    instead = f" Runs are below it: give {folder}/*/." if inside else ""
    rule = f"is not a work directory, without {METRICS_FILE} and {workdir.CONFIG_FILE}.{instead}"
    raise NotARun(rule, field=str(folder))


def rows_by_step(folder: epath.Path) -> dict[int, dict[str, Any]]:
    """Logged numbers of each step; of several rows of one step the last with a number counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for file in (METRICS_FILE, FOLLOWED_FILE):
        for row in MetricsFile(folder / file).rows():
            by_step.setdefault(row["step"], {}).update(row)
    return by_step


def _series(by_step: Mapping[int, Mapping[str, Any]]) -> dict[str, Series]:
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
