"""Progress and results of points, read from their work directories.

Lines tell the progress; results are a table for people and results.csv for programs.
"""

import contextlib
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from etils import epath

from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import write_file
from vit_jax.core.metric_names import is_less_better, readable
from vit_jax.core.screen import aligned, format_duration
from vit_jax.run.info import last_step
from vit_jax.store import runs, workdir
from vit_jax.store.metrics import evaluation
from vit_jax.tools.lab.sweep.grid import SEED, Point

CSV_FILE, FAILED_FILE = "results.csv", "failed.json"
LOSS, SPEED = "train/loss", "speed/images_per_second"

STATES = ("finished", "submitted", "waiting", "failed", "running")


class UnknownMetric(UserError):
    """No point has the number of --metric."""

    def __init__(self, metric: str, known: Iterable[str]) -> None:
        super().__init__(f"--metric={metric}: no point has it. {nearest(metric, known)}")


class PointProgress(NamedTuple):
    point: Point
    folder: epath.Path
    state: str = "waiting"  # one of STATES
    step: int = 0
    # The last value of each key of metrics.jsonl.
    numbers: dict[str, float] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    train_secs: float = 0.0  # seconds in logged steps, without start-up, evaluations and saving
    reason: str = ""  # the last message of a failed point


def read_row(point: Point, folder: epath.Path, *, running: bool = False) -> PointProgress:
    """The progress that the work directory shows; a point that has not begun is waiting."""
    failure = read_failure(folder)
    state = "running" if running else "failed" if failure else "waiting"
    try:
        run = runs.read(folder, point.name)
    except UserError:  # nothing there yet; the training itself reports damage
        return PointProgress(point, folder, state, reason=failure)
    state = "finished" if is_finished(run) else state
    numbers = {key: series.values[-1] for key, series in run.series.items()}
    reason, secs = failure if state == "failed" else "", _train_secs(run)
    return PointProgress(point, folder, state, run.last_step, numbers, secs, reason)


def read_rows(points: Sequence[Point], folder: epath.Path) -> list[PointProgress]:
    return [read_row(point, folder / point.name) for point in points]


def is_finished(run: runs.Run) -> bool:
    """Returns whether the last step is saved and evaluated by all evaluations."""
    end = last_step(run)
    if end is None or end not in workdir.steps(run.folder / "checkpoints"):
        return False
    evals = {field.split(".")[1] for field in run.fields if field.startswith("evals.")}
    evaluated = {key.partition("/")[0] for key, s in run.series.items() if s.steps[-1] == end}
    return evals <= evaluated


def read_failure(folder: epath.Path) -> str:
    try:
        reason = workdir.read_json(folder / FAILED_FILE, lambda kept: str(kept["reason"]), "")
    except UserError:
        return f"{FAILED_FILE} is damaged"
    return reason or ""


def write_failure(folder: epath.Path, status: int, reason: str) -> None:
    """Keeps the reason of a failure; the point is not started again until `forget_failure`."""
    text = json.dumps({"status": status, "reason": reason}) + "\n"
    write_file(folder / FAILED_FILE, text)


def forget_failure(folder: epath.Path) -> None:
    (folder / FAILED_FILE).unlink(missing_ok=True)


def failures(rows: Sequence[PointProgress], of: str = "") -> list[str]:
    """The points that have not finished, and why; `of` stands before their names."""
    return [f"{of}{r.point.name}: {r.reason or r.state}" for r in rows if r.state != "finished"]


def group_by_values(
    rows: Sequence[PointProgress],
) -> list[tuple[dict[str, str], list[PointProgress]]]:
    """(values without the seed, their rows): trainings that differ in nothing else are together."""
    groups: dict[tuple[tuple[str, str], ...], list[PointProgress]] = {}
    for row in rows:
        values = tuple((f, v) for f, v in row.point.values.items() if f != SEED)
        groups.setdefault(values, []).append(row)
    return [(dict(values), members) for values, members in groups.items()]


def evaluation_keys(rows: Sequence[Any]) -> list[str]:
    """The training loss and what evaluations gave, each name once, of rows with `numbers`."""
    unique = dict.fromkeys(key for row in rows for key in row.numbers)
    return [key for key in unique if key == LOSS or evaluation(key)]


def choose_metric(rows: Sequence[PointProgress]) -> str:
    """An accuracy, else a loss, of the first evaluation; the training loss if there is none."""
    keys = [key for key in evaluation_keys(rows) if key != LOSS]
    for end in ("/accuracy", "/loss"):
        matching = [key for key in keys if key.endswith(end)]
        if matching:  # the raw weights' before their EMA's
            return min(matching, key=lambda key: "_ema/" in key)
    return keys[0] if keys else LOSS


def is_scored(row: PointProgress, metric: str) -> bool:
    """Returns whether the point has finished with a finite number of the metric."""
    return row.state == "finished" and math.isfinite(row.numbers.get(metric, math.nan))


def format_number(key: str, value: float | None, column: Iterable[float | None] = ()) -> str:
    """A number as tables show it: 98.06%, 0.09995, 1,610; `column`: those of all rows."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "not finite"
    return f"{value:,.0f}" if key == SPEED and value >= 10 else readable(key, value, column)


def _train_secs(run: runs.Run) -> float:
    stated = run.fields.get("input.batch_size", "")  # as JSON
    batch_size = int(stated) if stated.isdecimal() else 0
    series = run.series.get(SPEED, runs.Series([], []))
    steps = [0, *series.steps]
    return sum(
        (step - before) * batch_size / speed
        for before, step, speed in zip(steps, steps[1:], series.values, strict=False)
        if speed > 0
    )


class Reporter:
    """Tells how points go on; keeps `rows`, by number, up to date."""

    EVERY_SECS = 60.0  # between lines without an event

    def __init__(
        self, rows: Sequence[PointProgress], metric: str | None, out: TextIO | None = None
    ):
        self.rows = {row.point.number: row for row in rows}
        self._metric, self._out = metric, out or sys.stdout
        self._said = time.monotonic()
        self._submitted: set[int] = set()

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed pipe must not end a sweep that runs for days
            print(text, file=self._out, flush=True)

    def tell(self, point: Point, what: str, why: str = "") -> None:
        """Says that a point has started (again), finished, failed, stopped, was found ..."""
        if what == "submitted":
            self._submitted.add(point.number)
        row = self._read(point.number, running=what in ("started", "found", "goes on"))
        if what == "finished":
            metric = self._metric or choose_metric([row])
            why = f"{metric} {format_number(metric, row.numbers.get(metric))}"
        self.say(f"{time.strftime('%H:%M:%S')}  {what:9}  {point.name}{why and f': {why}'}")

    def refresh(self, running: Collection[str] = ()) -> None:
        """Reads the progress of running points and says how many are in which state, if due."""
        if time.monotonic() - self._said > self.EVERY_SECS:
            self._said = time.monotonic()
            for number, row in self.rows.items():
                if row.point.name in running:
                    self._read(number, running=True)
            self.say(f"{time.strftime('%H:%M:%S')}  {summary(list(self.rows.values()))}")

    def finished(self, names: Collection[str]) -> set[str]:
        """Those of the points, which no process here trains, that have finished."""
        numbers = [number for number, row in self.rows.items() if row.point.name in names]
        rows = [self._read(number) for number in numbers]
        return {row.point.name for row in rows if row.state == "finished"}

    def _read(self, number: int, *, running: bool = False) -> PointProgress:
        row = read_row(self.rows[number].point, self.rows[number].folder, running=running)
        if row.state == "waiting" and number in self._submitted:
            row = row._replace(state="submitted")
        self.rows[number] = row
        return row


def summary(rows: Sequence[PointProgress]) -> str:
    """A count of points by state: "12 points: 5 finished, 2 running, 5 waiting"."""
    states = [row.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
    return f"{count_of(len(rows))}: {', '.join(counts)}"


def count_of(count: int, what: str = "point") -> str:
    """ "1 point", "12 points"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def csv_lines(
    rows: Sequence[PointProgress], fields: Sequence[str], keys: Sequence[str]
) -> list[list[Any]]:
    """A head, then for each point its values of the fields, its numbers, and where it is."""
    lines: list[list[Any]] = [[*fields, "state", *keys, "step", "train_seconds", "workdir"]]
    for row in rows:
        values = [row.point.all_values[field] for field in fields]
        numbers = [row.numbers.get(key, "") for key in keys]
        ends = [row.step, round(row.train_secs, 1), row.folder]
        lines.append([*values, row.state, *numbers, *ends])
    return lines


def result_table(rows: Sequence[PointProgress], metric: str) -> list[str]:
    """Lines of the results: values on the axes, metric, losses, steps, time; the best first."""
    axes = list(rows[0].point.values)
    keys = evaluation_keys(rows)
    losses = [key for key in keys if key.endswith("/loss") and "_ema/" not in key]
    columns = {key: [row.numbers.get(key) for row in rows] for key in (metric, *losses)}
    cells = [
        [
            *(row.point.values[axis] for axis in axes),
            *(format_number(key, row.numbers.get(key), each) for key, each in columns.items()),
            f"{row.step:,}",
            format_duration(row.train_secs),
            "" if row.state == "finished" else row.state,
        ]
        for row in sort_rows(rows, metric)
    ]
    head = [*axes, *columns, "step", "time", ""]
    return aligned(head, cells, left={*range(len(axes)), len(head) - 1})


def seed_table(rows: Sequence[PointProgress], metric: str) -> list[str]:
    """Lines of mean, standard deviation and range over seeds; [] without several seeds."""
    axes = [axis for axis in rows[0].point.values if axis != SEED]
    scored = [row for row in rows if is_scored(row, metric)]
    groups = [
        (values.values(), [row.numbers[metric] for row in members])
        for values, members in group_by_values(scored)
    ]
    if not axes or max((len(numbers) for _, numbers in groups), default=0) < 2:
        return []
    groups.sort(key=lambda g: statistics.mean(g[1]), reverse=not is_less_better(metric))
    shown = functools.partial(format_number, metric, column=[n for _, each in groups for n in each])
    cells = []
    for values, each in groups:
        std = statistics.stdev(each) if len(each) > 1 else None
        ends = f"{shown(min(each))} to {shown(max(each))}"
        cells.append([*values, shown(statistics.mean(each)), shown(std), ends, str(len(each))])
    head = [*axes, f"mean {metric}", "std", "range", "seeds"]
    return aligned(head, cells, left=range(len(axes)))


def sort_rows(rows: Sequence[PointProgress], metric: str) -> list[PointProgress]:
    """Sorts rows: the best first, then those that have not ended or have failed."""
    scored = [row for row in rows if is_scored(row, metric)]
    scored.sort(key=lambda row: row.numbers[metric], reverse=not is_less_better(metric))
    return [*scored, *(row for row in rows if not is_scored(row, metric))]
