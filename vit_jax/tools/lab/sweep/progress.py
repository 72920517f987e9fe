"""Progress of points, read from their work directories, and the screen that shows it."""

import json
import math
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TextIO

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.core.screen import aligned, format_duration
from vit_jax.store import runs, workdir
from vit_jax.store.metrics_file import RESERVED
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.training.early_stopping import stopped

FAILED_FILE = "failed.json"
EARLY = ("metric", "mode", "patience", "min_delta")
LOSS, SPEED = "train/loss", "speed/images_per_second"

HEAD = ("point", "state", "step", "loss", "", "images/s", "left", "")
# If the table is too long for the terminal, states at the end of this list are dropped first.
ORDER = ("running", "failed", "submitted", "waiting", "finished")
KEPT = ("again", "failed", "found")  # events that are printed beside the table as well


class PointProgress(NamedTuple):
    """A point at one moment.

    Attributes:
      state: waiting, running, finished or failed.
      numbers: the last value of each key of metrics.jsonl.
      train_secs: seconds in logged steps, without start-up, evaluations and saving.
      reason: the last message of a failed point.
    """

    point: Point
    folder: epath.Path
    state: str = "waiting"
    step: int = 0
    total_steps: int | None = None
    numbers: dict[str, float] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    train_secs: float = 0.0
    left_secs: float = math.nan
    reason: str = ""


def look(point: Point, folder: epath.Path, *, running: bool = False) -> PointProgress:
    """The progress that the work directory shows; a point that has not begun is waiting."""
    state = "running" if running else "waiting"
    failure = read_failure(folder)
    if failure and not running:
        state = "failed"
    try:
        run = runs.read(folder, point.name)
    except UserError:  # nothing there yet; the training itself reports damage
        return PointProgress(point, folder, state, reason=failure)
    if is_finished(run):
        state = "finished"
    numbers = {key: series.values[-1] for key, series in run.series.items()}
    stated = run.fields.get("input.batch_size", "")  # as JSON
    batch_size = int(stated) if stated.isdecimal() else 0
    speed, left = numbers.get(SPEED, math.nan), (run.planned_steps or math.nan) - run.last_step
    return PointProgress(
        point,
        folder,
        state,
        run.last_step,
        run.planned_steps,
        numbers,
        _train_secs(run, batch_size),
        left_secs=left * batch_size / speed if speed > 0 else math.nan,
        reason=failure if state == "failed" else "",
    )


def is_finished(run: runs.Run) -> bool:
    """Whether the last step is saved, and all evaluations of the config have evaluated it."""
    end = _last_step(run)
    if end is None or end not in workdir.steps(run.folder / "checkpoints"):
        return False
    evals = {field.split(".")[1] for field in run.fields if field.startswith("evals.")}
    evaluated = {key.partition("/")[0] for key, s in run.series.items() if s.steps[-1] == end}
    return evals <= evaluated


def _last_step(run: runs.Run) -> int | None:
    """The step after which a run ends: early, if it does; None if that is not known."""
    of = {name: json.loads(run.fields.get(f"early_stopping.{name}", "null")) for name in EARLY}
    series = run.series.get(of.pop("metric") or "")
    if series is None:
        return run.planned_steps
    early = stopped(zip(series.steps, series.values, strict=True), **of)
    return run.planned_steps if early is None else max(early.step, saved_step(run.folder))


def saved_step(folder: epath.Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max(workdir.steps(folder / "checkpoints"), default=0)


def read_failure(folder: epath.Path) -> str:
    """The reason why the point failed; "" if it did not."""
    try:
        return str(parse_json((folder / FAILED_FILE).read_bytes())["reason"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, OSError):
        return f"{FAILED_FILE} is damaged"


def write_failure(folder: epath.Path, status: int, reason: str) -> None:
    """Keeps the reason of a failure; the point is not started again until `forget_failure`."""
    text = json.dumps({"status": status, "reason": reason}) + "\n"
    write_text(folder / FAILED_FILE, text)


def forget_failure(folder: epath.Path) -> None:
    """Deletes the record of a failure, so that the point may be started again."""
    (folder / FAILED_FILE).unlink(missing_ok=True)


def choose_metric(rows: Sequence[PointProgress]) -> str:
    """An accuracy, else a loss, of the first evaluation; the training loss if there is none."""
    keys = list(dict.fromkeys(key for row in rows for key in row.numbers))
    evaluated = [key for key in keys if key.partition("/")[0] not in RESERVED]
    for end in ("/accuracy", "/loss"):
        matching = [key for key in evaluated if key.endswith(end)]
        if matching:  # the raw weights' before their EMA's
            return min(matching, key=lambda key: "_ema/" in key)
    return evaluated[0] if evaluated else LOSS


def is_better_high(metric: str) -> bool:
    """Whether higher values of the metric are better."""
    return not any(word in metric for word in ("loss", "error"))


def shown_number(key: str, value: float | None) -> str:
    """A number as tables show it: 98.06%, 0.09995, 1,610."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "not finite"
    if key.endswith("accuracy"):
        return f"{value:.2%}"
    return f"{value:,.0f}" if key == SPEED and value >= 10 else f"{value:.4g}"


def _train_secs(run: runs.Run, batch_size: int) -> float:
    """Training time of all logged steps, by the images per second of each row."""
    series = run.series.get(SPEED, runs.Series([], []))
    steps = [0, *series.steps]
    return sum(
        (step - before) * batch_size / speed
        for before, step, speed in zip(steps, steps[1:], series.values, strict=False)
        if speed > 0
    )


class Live:
    """Shows points by their work directories.

    Args:
      rows: progress by the points' numbers; kept up to date by `refresh`.
      metric: None: chosen from the logged ones.
    """

    EVERY_SECS = 1.0
    PLAIN_EVERY_SECS = 60.0  # between lines, without a terminal

    def __init__(
        self, rows: Mapping[int, PointProgress], metric: str | None, out: TextIO | None = None
    ):
        self.rows = dict(rows)
        self._metric, self._out = metric, out or sys.stdout
        self._live = self._out.isatty()
        self._drawn = 0  # lines of the table on the terminal
        self._shown = time.monotonic() if not self._live else 0.0

    def say(self, text: str) -> None:
        """Prints a permanent line above the table."""
        self._write(self._erase() + text + "\n")
        self._drawn = 0

    def tell(self, point: Point, what: str, why: str) -> None:
        """Shows an event of a point."""
        row = self._look(point.number, running=what in ("started", "found"))
        if what == "finished":
            metric = self._metric or choose_metric([row])
            why = f"{metric} {shown_number(metric, row.numbers.get(metric))}"
        if not self._live or what in KEPT:
            self.say(f"{time.strftime('%H:%M:%S')}  {what:8}  {point.name}{why and f': {why}'}")

    def refresh(self, running: Collection[str], submitted: Collection[str] = ()) -> None:
        """Reads the progress of running points and draws the table, if it is due."""
        now = time.monotonic()
        if now - self._shown < (self.EVERY_SECS if self._live else self.PLAIN_EVERY_SECS):
            return
        self._shown = now
        for number, row in self.rows.items():
            if row.point.name in running:
                self._look(number, running=True)
        rows = [
            row._replace(state="submitted")
            if row.state == "waiting" and row.point.name in submitted
            else row
            for row in self.rows.values()
        ]
        if self._live:
            self._draw(rows)
        else:
            self.say(f"{time.strftime('%H:%M:%S')}  {summary(rows)}")

    def look(self, names: Collection[str]) -> list[PointProgress]:
        """Fresh rows of these points, which no process here trains."""
        numbers = [number for number, row in self.rows.items() if row.point.name in names]
        return [self._look(number, running=False) for number in numbers]

    def close(self) -> None:
        """Removes the table."""
        self._write(self._erase())
        self._drawn = 0

    def _look(self, number: int, *, running: bool) -> PointProgress:
        row = self.rows[number]
        self.rows[number] = look(row.point, row.folder, running=running)
        return self.rows[number]

    def _draw(self, rows: Sequence[PointProgress]) -> None:
        columns, height = shutil.get_terminal_size()
        lines = [*table(rows, self._metric, height - 3), summary(rows)]
        # A wrapped line could not be redrawn.
        self._write(self._erase() + "".join(f"{line[: columns - 1]}\n" for line in lines))
        self._drawn = len(lines)

    def _erase(self) -> str:
        return f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:  # a closed pipe must not end a sweep that runs for days
            self._live = False


def table(rows: Sequence[PointProgress], metric: str | None, most: int) -> list[str]:
    """Lines of the table: a header and at most `most` points, in order."""
    metric = metric or choose_metric(rows)
    kept = sorted(rows, key=lambda row: (ORDER.index(row.state), row.point.number))[: max(most, 1)]
    head = [*HEAD[:4], metric, *HEAD[5:]]
    shown = [_cells(row, metric) for row in sorted(kept, key=lambda row: row.point.number)]
    return aligned(head, shown, left={0, 1, len(head) - 1})


def summary(rows: Sequence[PointProgress]) -> str:
    """A count of points by state: "12 points: 5 finished, 2 running, 5 waiting"."""
    states = [row.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in reversed(ORDER) if state in states]
    return f"{number(rows)}: {', '.join(counts)}"


def number(points: Sequence[object]) -> str:
    """ "1 point", "12 points"."""
    return f"{len(points)} point{'' if len(points) == 1 else 's'}"


def _cells(row: PointProgress, metric: str) -> list[str]:
    numbers, begun = row.numbers, row.step > 0
    total = f"/{row.total_steps:,}" if row.total_steps else ""
    running = row.state in ("running", "submitted") and begun
    loss, value = (numbers.get(key) for key in (LOSS, metric))
    speed = shown_number(SPEED, numbers.get(SPEED))
    return [
        row.point.name,
        row.state,
        f"{row.step:,}{total}" if begun else "",
        shown_number(LOSS, loss) if begun else "",
        shown_number(metric, value) if begun else "",
        speed if running else "",
        format_duration(row.left_secs) if running else "",
        row.reason.splitlines()[0] if row.reason else "",
    ]
