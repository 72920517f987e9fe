"""The rows of a run, written as they are measured, and what earlier runs have already measured."""

import collections
import csv
import datetime
import hashlib
import math
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import rows
from benchmarks.contenders import split
from benchmarks.workers import ROOT
from vit_jax.core.errors import UserError

NAME = "on_accelerator"
TOYS = ", toys"  # behind the device's name in rows of a dry run
MEASURED, FAILED, SKIPPED = "measured", "failed", "skipped"

# All that a row can hold; a measurement fills some. Units are in the names, but for `value`, whose
# unit is the next column.
COLUMNS = (
    "commit", "sources", "device", "versions", "time", "part", "case", "entrant", "status",
    "images_per_second", "step_ms", "share_of_matrix_rate", "share_of_datasheet_rate",
    "matrix_tflops", "own_is_faster_by", "peak_gib", "compiled_gib", "compile_secs",
    "first_step_secs", "value", "unit", "note", "took_secs",
)  # fmt: skip

_OF_NUMBERS = ("_second", "_ms", "_rate", "_tflops", "_by", "_gib", "_secs")
_TORCH = ("torch", "triton", "timm", "transformers")
_JAX = ("jax", "jaxlib", "flax", "optax")


class Journal:
    """Appends rows to <folder>/on_accelerator.csv.

    earlier: folders whose measured rows count, if the sources and the device are the same. dry:
    whether toys are measured, whose rows are marked and count in dry runs alone. UserError if the
    folder cannot be written.
    """

    def __init__(self, folder: Path, earlier: list[Path], *, dry: bool = False):
        self.folder = folder
        self.device = (rows.gpu() or rows.cpu()) + (TOYS if dry else "")
        _check_writable(folder)
        self._commit, self._sources = commit(), sources()
        self._last = time.monotonic()
        self._done: dict[tuple[str, str, str], dict[str, str]] = {}
        self._took_secs: collections.Counter[str] = collections.Counter()
        for row in _read([folder, *earlier]):
            # What failed, or was skipped, is tried again, and its time does not count.
            same = (row["sources"], row["device"]) == (self._sources, self.device)
            if same and row["status"] == MEASURED:
                self._count(row)

    def done(self, part: str, case: str, entrant: str) -> bool:
        """Whether it has been measured, or has failed since this journal was opened."""
        return (part, case, entrant) in self._done

    def took_secs(self, part: str) -> float:
        """The seconds that a part has taken up to now; of earlier runs, those of measured rows."""
        return self._took_secs[part]

    def of(self, part: str) -> list[dict[str, str]]:
        """The rows of a part that was measured."""
        rows = self._done.values()
        return [row for row in rows if (row["part"], row["status"]) == (part, MEASURED)]

    def write(self, part: str, case: str, entrant: str, status: str, **values: object) -> None:
        """Appends a row and prints it."""
        row: dict[str, object] = dict.fromkeys(COLUMNS, "")
        row |= {
            "commit": self._commit,
            "sources": self._sources,
            "device": self.device,
            "versions": rows.installed(
                *(_TORCH if split(entrant)[0] in ("timm_vit", "torch_vit") else _JAX)
            ),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "part": part,
            "case": case,
            "entrant": entrant,
            "status": status,
            "took_secs": round(time.monotonic() - self._last, 1),
            **{name: "" if value is None else value for name, value in values.items()},
        }
        assert set(row) == set(COLUMNS), set(row) - set(COLUMNS)
        rows.append(NAME, row, self.folder)
        self._last = time.monotonic()
        self._count({name: str(value) for name, value in row.items()})
        said = {name: value for name, value in row.items() if value != ""}
        shown = [f"{name} {said[name]}" for name in COLUMNS[COLUMNS.index("status") + 1 :]
                 if name in said]  # fmt: skip
        print(f"{part} | {case} | {entrant} | {status} | {', '.join(shown)}", flush=True)

    def _count(self, row: dict[str, str]) -> None:
        self._took_secs[row["part"]] += _number(row["took_secs"])
        if row["status"] != SKIPPED:
            self._done[row["part"], row["case"], row["entrant"]] = row


def take(folder: Path) -> int:
    """Adds the rows of a folder to the results, those that are not there; how many.

    Rows of these sources that were written outside a clone get the commit of this one. Rows that
    are not whole are left out. UserError if the folder has none, or those of a dry run.
    """
    if not (folder / f"{NAME}.csv").exists():
        raise UserError(f"--take={folder} has no {NAME}.csv: give the --output of a run.")
    if any(row["device"].endswith(TOYS) for row in _read([folder])):
        raise UserError(f"--take={folder} has rows of a dry run: its numbers mean nothing.")
    here = {"commit": commit(), "sources": sources()}
    found = [
        row | (here if (row["commit"], row["sources"]) == ("", here["sources"]) else {})
        for row in _read([folder])
    ]
    there = list(_read([rows.RESULTS]))
    new = [row for i, row in enumerate(found) if row not in there and row not in found[:i]]
    for row in new:
        rows.append(NAME, dict(row))
    return len(new)


def commit() -> str:
    """The commit of what is measured; empty outside a clone, where `sources` has to do."""
    try:
        return rows.commit("vit_jax", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return ""


def sources() -> str:
    """A hash of all that is measured and of what measures it: equal for equal programs."""
    digest = hashlib.sha256()
    for file in sorted([*ROOT.glob("vit_jax/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:10]


def _read(folders: list[Path]) -> Iterator[dict[str, str]]:
    """The rows of files in folders; those that a full disk or a kill cut off are left out.

    UserError for a file that is not one of rows.
    """
    for folder in folders:
        file = folder / f"{NAME}.csv"
        if not file.exists():
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is not a table: move it away.") from error
        found = csv.DictReader(text.splitlines())
        if tuple(found.fieldnames or ()) != COLUMNS:
            raise UserError(f"{file} has other columns than this version writes: move it away.")
        yield from (row for row in found if _is_whole(row))


def _is_whole(row: Mapping[str | None, str | None]) -> bool:
    numbers = [row[name] for name in COLUMNS if name.endswith(_OF_NUMBERS) or name == "value"]
    return (
        None not in row
        and None not in row.values()
        and row["status"] in (MEASURED, FAILED, SKIPPED)
        and math.isfinite(_number(row["took_secs"] or ""))
        and all(math.isfinite(_number(text)) for text in numbers if text)
    )


def _number(text: str) -> float:
    """The number, or nan."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{NAME}.csv").open("a"):
            pass
        if not (folder / f"{NAME}.csv").stat().st_size:
            (folder / f"{NAME}.csv").unlink()
    except OSError as error:
        raise UserError(f"--output={folder} cannot be written: {error.strerror}.") from error
