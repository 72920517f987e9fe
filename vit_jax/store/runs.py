"""The log of a run: metrics.jsonl, one JSON object per logged step, as series for reports."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json
from vit_jax.core.schema import renamed
from vit_jax.store import workdir

LARGEST_STEP = 2**63 - 1

# First parts of names, "train/loss", that no evaluation has.
RESERVED = ("train", "speed", "input", "step", "gradients", "activations")


class MetricsFile:
    """Rows like {"step": 100, "train/loss": 0.31}; NaN and infinity, which JSON lacks, as null."""

    def __init__(self, path: epath.PathLike):
        self._path = epath.Path(path)
        self._is_remote = cloud.is_remote(path)
        self._uploaded: bytes | None = None  # what this process wrote last; None: nothing yet

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a row, which then survives a kill. Raises UserError if it cannot.

        What is at gs:// and the like cannot be appended to: all rows are uploaded again, from
        memory, since to read them first would double the time.
        """
        row = {"step": step} | {
            name: float(v) if math.isfinite(v) else None for name, v in values.items()
        }
        line = json.dumps(row) + "\n"
        with workdir.explain_unwritable_workdir(self._path):
            if self._is_remote:
                self._uploaded = (self._read() if self._uploaded is None else self._uploaded) + (
                    line.encode()
                )
                self._path.write_bytes(self._uploaded)
                return
            with self._path.open("a") as file:
                file.write(line)

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line that a kill cut short is left out. [] without a file.

        NaN and infinities, which other programs may write, are null too. Raises UserError for any
        other line that is not a JSON object with a step and numbers, and for an unreadable file.
        """
        return [row for _, row in self._lines()]

    def truncate_after(self, step: int) -> None:
        """Removes rows after `step`, which a resumed run writes again, and a partial last one."""
        kept = b"".join(line for line, row in self._lines() if row["step"] <= step)
        self._uploaded = None
        if kept != self._read():
            workdir.save(self._path, kept)

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Complete lines and their values."""
        *whole, _ = [line + b"\n" for line in self._read().split(b"\n")]
        return [(line, self._parse(number, line)) for number, line in enumerate(whole, start=1)]

    def _read(self) -> bytes:
        if not self._path.exists():
            return b""
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise workdir.unreadable(self._path, error) from error

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = parse_json(line)
            step = row["step"]
            if type(step) is not int or not 0 <= step <= LARGEST_STEP:
                raise ValueError("no step")
            numbers = {k: v if k == "step" else _number(v) for k, v in row.items()}
            return renamed.metrics(numbers)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"Line {number} of {self._path} is not a row of metrics: {line[:80]!r}. Delete "
                "that line, or the file: training does not need it."
            ) from error


def _number(value: Any) -> float | None:
    """A number unchanged, or null if it is not finite as a float. TypeError for anything else."""
    if value is None:
        return None
    if type(value) not in (int, float):
        raise TypeError("not a number")
    return value if abs(value) <= sys.float_info.max else None


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


class NotARun(UserError):
    """A folder that is not a work directory, such as an export among runs/*/."""


def read_all(folders: Sequence[epath.Path]) -> list[Run]:
    """One run per folder that is a work directory; names the others on standard error.

    Raises UserError if none is one, all are empty, or one is damaged or not a folder.
    """
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
        raise UserError(
            f"{where} has {'not ' if len(runs) == 1 else ''}logged anything yet: there is no whole "
            f"row in {METRICS_FILE}. Rows come every log.every_steps steps; try again then."
        )
    return runs


def read(folder: epath.Path, name: str) -> Run:
    """The run in a folder. Raises UserError if it is not a work directory, or damaged."""
    has_config = _check_folder(folder)
    document = workdir.read_document(folder) if has_config else {}
    rows = rows_by_step(folder)
    with explain_damage(folder):
        config, starts = document.get("config", {}), list(document.get("runs", []))
        fields = workdir.flatten(config)
        if document:
            fields |= workdir.flatten({"data fingerprint": document["fingerprint"]})
        series = _series(rows)
        if not all(isinstance(start, dict) for start in starts):
            raise TypeError("its list of runs has other entries than objects")
        return Run(folder, name, series, fields, starts, _planned_steps(config, starts))


@contextlib.contextmanager
def explain_damage(folder: epath.Path) -> Iterator[None]:
    """Turns exceptions from reading a damaged work directory into a UserError that names it."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{folder} is damaged: its {workdir.CONFIG_FILE} or {METRICS_FILE} is not as training "
            f"writes it ({type(error).__name__}: {error}). Restore it, or leave this run out."
        ) from error


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
    instead = f" Runs are below it: give {folder}/*/." if inside else ""
    raise NotARun(
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
