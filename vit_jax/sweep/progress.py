"""Progress of a point, read from its work directory."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.store import checkpoint_dir, runs
from vit_jax.store.metrics_file import RESERVED
from vit_jax.sweep.grid import Point

FAILED_FILE = "failed.json"
LOSS, SPEED = "train/loss", "speed/images_per_second"


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
        left * batch_size / speed if speed > 0 else math.nan,
        failure if state == "failed" else "",
    )


def is_finished(run: runs.Run) -> bool:
    """Whether the last step is saved, and all evaluations of the config have evaluated it."""
    end = run.planned_steps
    if end is None or end not in checkpoint_dir.steps(run.folder / "checkpoints"):
        return False
    evals = {field.split(".")[1] for field in run.fields if field.startswith("evals.")}
    evaluated = {key.partition("/")[0] for key, s in run.series.items() if s.steps[-1] == end}
    return evals <= evaluated


def saved_step(folder: epath.Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max(checkpoint_dir.steps(folder / "checkpoints"), default=0)


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


def shown(key: str, value: float | None) -> str:
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
    series: Any = run.series.get(SPEED)
    if series is None:
        return 0.0
    steps = [0, *series.steps]
    return sum(
        (step - before) * batch_size / speed
        for before, step, speed in zip(steps, steps[1:], series.values, strict=False)
        if speed > 0
    )
