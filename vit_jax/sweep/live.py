"""The screen of a running sweep: a table that is redrawn, or plain lines without a terminal."""

import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TextIO

from vit_jax.core.screen import format_duration
from vit_jax.sweep import progress
from vit_jax.sweep.grid import Point
from vit_jax.sweep.progress import PointProgress
from vit_jax.sweep.results import aligned

HEAD = ("point", "state", "step", "loss", "", "images/s", "left", "")
# If the table is too long for the terminal, states at the end of this list are dropped first.
ORDER = ("running", "failed", "submitted", "waiting", "finished")
KEPT = ("again", "failed", "found")  # events that are printed beside the table as well


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

    def say(self, text: str = "") -> None:
        """Prints a permanent line above the table."""
        self._write(self._erase() + text + "\n")
        self._drawn = 0

    def tell(self, point: Point, what: str, why: str = "") -> None:
        """Shows an event of a point."""
        row = self._look(point.number, running=what in ("started", "found"))
        if what == "finished":
            metric = self._metric or progress.choose_metric([row])
            why = f"{metric} {progress.shown(metric, row.numbers.get(metric))}"
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

    def look_at(self, names: Collection[str]) -> list[PointProgress]:
        """Fresh rows of these points, which no process here trains."""
        numbers = [number for number, row in self.rows.items() if row.point.name in names]
        return [self._look(number, running=False) for number in numbers]

    def close(self) -> None:
        """Removes the table."""
        self._write(self._erase())
        self._drawn = 0

    def _look(self, number: int, *, running: bool) -> PointProgress:
        row = self.rows[number]
        self.rows[number] = progress.look(row.point, row.folder, running=running)
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
    metric = metric or progress.choose_metric(rows)
    kept = sorted(rows, key=lambda row: (ORDER.index(row.state), row.point.number))[: max(most, 1)]
    head = [*HEAD[:4], metric, *HEAD[5:]]
    shown = [_cells(row, metric) for row in sorted(kept, key=lambda row: row.point.number)]
    return aligned(head, shown, left=2)


def summary(rows: Sequence[PointProgress]) -> str:
    """A count of points by state: "12 points: 5 finished, 2 running, 5 waiting"."""
    states = [row.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in reversed(ORDER) if state in states]
    return f"{len(rows)} points: {', '.join(counts)}"


def _cells(row: PointProgress, metric: str) -> list[str]:
    numbers, begun = row.numbers, row.step > 0
    total = f"/{row.total_steps:,}" if row.total_steps else ""
    running = row.state in ("running", "submitted") and begun
    loss, value = (numbers.get(key) for key in (progress.LOSS, metric))
    speed = progress.shown(progress.SPEED, numbers.get(progress.SPEED))
    return [
        row.point.name,
        row.state,
        f"{row.step:,}{total}" if begun else "",
        progress.shown(progress.LOSS, loss) if begun else "",
        progress.shown(metric, value) if begun else "",
        speed if running else "",
        format_duration(row.left_secs) if running else "",
        row.reason.splitlines()[0] if row.reason else "",
    ]
