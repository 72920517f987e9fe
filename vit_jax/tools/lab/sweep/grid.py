"""The grid of a sweep: arguments of a training, in which commas separate the values of an axis.

    --config configs/vit_digits.py --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

are two axes and six points. A comma inside brackets or quotes belongs to its value. sweep.json
keeps the grid in the sweep's folder, where other grids are then refused:

{"common": {"config": ..., field: value}, "flags": [...], "axes": [field, ...],
 "points": [{field: value}, ...]}
"""

import functools
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core import command
from vit_jax.core.errors import ErrorCollector, UserError
from vit_jax.core.schema import config_file, strict
from vit_jax.evals import KINDS
from vit_jax.run import adapt
from vit_jax.run.parts.outputs import MAY_DIFFER
from vit_jax.store import workdir

FILE = "sweep.json"
CONFIG, SEED = "config", "seed"  # the axis of config files, and of seeds
NOT_FOR_TRAININGS = (
    *("workdir", "name", "slots", "launcher", "follow", "nofollow", "metric", "dry_run"),
    *("slot_variable", "max_restarts", "retry_failed", "check", "nocheck"),
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
QUOTES = "'\""
HINT = (
    "A comma separates values, but not inside brackets or quotes: [0.5,0.5,0.5] is one, and so is "
    '"a, b".'
)
MAX_NAME = 120  # characters of a folder's name; file systems take 255 bytes
MAX_NAMED = 3  # points named in a message
ALLOW = "--allow_config_change"  # a flag of vit_jax.train
KEYS = ("common", "flags", "axes", "points")  # of sweep.json


class SweepGrid(NamedTuple):
    common: dict[str, str]  # what all points share, "optim.lr" -> "1e-3"; the config file is CONFIG
    # The fields in which they differ -> their values, at least two.
    axes: dict[str, tuple[str, ...]]
    flags: tuple[str, ...] = ()  # other flags of vit_jax.train
    # Whether its trainings are jobs, whose machines are taken to have accelerators.
    launched: bool = False

    def points(self) -> list[dict[str, str]]:
        """The points, as values by axis; the last axis changes fastest."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]

    def load(self, values: Mapping[str, str] | None = None) -> RunConfig:
        """The config of the point with these values; None: with the first of each axis."""
        values = self.points()[0] if values is None else values
        return Point(0, dict(values), self.common, launched=self.launched).load()


class Point(NamedTuple):
    number: int  # its place in the sweep, from 1, which stays the same when points are added
    values: dict[str, str]  # its value on each axis
    common: dict[str, str]  # the values that it shares with all others
    flags: tuple[str, ...] = ()
    launched: bool = False

    @property
    def name(self) -> str:
        """The name of its work directory, unique in the sweep: "optim.lr=1e-3,seed=0"."""
        parts = [f"{field}={_readable(field, value)}" for field, value in self.values.items()]
        full = ",".join(parts) or "run"
        return full if len(full) <= MAX_NAME else f"{full[: MAX_NAME - 9]}~{short_hash(full, 8)}"

    @property
    def all_values(self) -> dict[str, str]:
        return self.common | self.values

    @property
    def fields(self) -> dict[str, str]:
        """The config fields that it sets, "optim.lr" -> "1e-3"."""
        return {field: value for field, value in self.all_values.items() if field != CONFIG}

    @property
    def overrides(self) -> list[str]:
        """Overrides of config fields, "optim.lr=1e-3"."""
        return [f"{field}={value}" for field, value in self.fields.items()]

    def load(self) -> RunConfig:
        on_cpu = (lambda: False) if self.launched else _trains_on_cpu
        return adapt.load(self.all_values[CONFIG], self.overrides, on_cpu=on_cpu)

    def arguments(self, workdir: str) -> list[str]:
        overrides = [f"{command.PREFIX}{override}" for override in self.overrides]
        config = self.all_values[CONFIG]
        return ["--config", config, "--workdir", workdir, *overrides, *self.flags]


@functools.cache
def _trains_on_cpu() -> bool:
    """Asks, in a process of its own lest it takes an accelerator, whether a training has none."""
    asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(asked, capture_output=True, check=False).stdout.strip() == b"cpu"


def parse(arguments: Sequence[str]) -> SweepGrid:
    common: dict[str, str] = {}
    axes: dict[str, tuple[str, ...]] = {}
    flags = []
    for flag, value in _flags(command.spell_overrides(arguments)):
        if flag == CONFIG:
            field, values = CONFIG, _config_files(value or "")
        elif flag == command.OVERRIDE:
            field, _, text = (value or "").partition("=")
            values = split(text)
        else:
            flags.append(f"--{flag}" if value is None else f"--{flag}={value}")
            continue
        _drop_overridden(field, values, common, axes)
        if len(values) == 1:
            common[field] = values[0]
        elif "" in values or len(set(values)) < len(values):
            rule = f"has a value that is empty, or given twice. {HINT}"
            raise UserError(rule, field=field, value=",".join(values))
        else:
            axes[field] = tuple(values)
    if CONFIG not in common and CONFIG not in axes:
        raise UserError('No --config: give what vit_jax.train gets behind " -- ".')
    return SweepGrid(common, axes, tuple(flags))


def from_config(config: str, overrides: Sequence[str], *, launched: bool = False) -> SweepGrid:
    grid = parse([f"--{CONFIG}", config, *(f"{command.PREFIX}{each}" for each in overrides)])
    grid = grid._replace(launched=launched)
    grid.load()
    return grid


def _drop_overridden(
    field: str, values: Sequence[str], common: dict[str, str], axes: dict[str, tuple[str, ...]]
) -> None:
    """Drops overrides that a later one replaces or excludes, as in a training."""
    is_none = [strict.says_none(value) for value in values]
    for other in (field, *(() if any(is_none) else configs.rivals(field))):
        if other == field or not strict.says_none(common.get(other, "")):
            common.pop(other, None)
            axes.pop(other, None)


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(flag, value) of --flag=value and --flag; a value on its own belongs to --config."""
    given = iter(arguments)
    for argument in given:
        name, eq, value = argument.partition("=")
        match = re.fullmatch(r"--?(\w[\w.]*)", name)
        if match is None or (flag := match[1]) in NOT_FOR_TRAININGS:
            rule = "is not a --flag=value of vit_jax.train; those of a sweep come before the --."
            raise UserError(rule, field=argument)
        if flag in (CONFIG, "workdir") and not eq:
            yield flag, next(given, "")
        else:
            yield flag, value if eq else None


def split(text: str) -> list[str]:
    """The values between commas, without quotes around a whole value."""
    values, begin, open_brackets, quote = [], 0, [], ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in PAIRS:
            open_brackets.append(PAIRS[letter])
        elif open_brackets and letter == open_brackets[-1]:
            open_brackets.pop()
        elif letter == "," and not open_brackets:
            values.append(text[begin:place])
            begin = place + 1
    if quote or open_brackets:
        missing = quote or open_brackets[-1]
        raise UserError(f"{text}: {missing} is missing at the end of a value. {HINT}")
    return [_unquote(value.strip()) for value in [*values, text[begin:]]]


def _unquote(value: str) -> str:
    inside = value[1:-1]
    quoted = len(value) > 1 and value[0] in QUOTES and value[-1] == value[0]
    return inside if quoted and value[0] not in inside else value


def _config_files(text: str) -> list[str]:
    """The config files between commas; "x.py:variant=L/16,aug=light1" is one file."""
    names = "|".join(config_file.config_names())
    files: list[str] = []
    for piece in split(text):
        if files and not re.search(rf"\.py(:|$)|^({names})(:|$)", piece):
            files[-1] += f",{piece}"
        else:
            files.append(piece)
    return files


def format_values(values: Mapping[str, str]) -> str:
    """ "optim.lr=1e-3, seed=0"."""
    return ", ".join(f"{field}={value}" for field, value in values.items())


def evaluation_numbers(config: RunConfig) -> dict[str, Sequence[str]]:
    """The names of the numbers that each evaluation gives; a training refuses other kinds."""
    return {name: list(c.numbers()) for name, c in config.evals.items() if c.kind in KINDS}


def short(field: str, value: str) -> str:
    """The value; of a config file, "configs/vit_digits.py:variant=S/16", without folder and .py."""
    if field != CONFIG:
        return value
    path, colon, variant = value.partition(":")
    return Path(path).stem + colon + variant


def distinct_names(values: Sequence[str], *spellings: Callable[[str], str]) -> dict[str, str]:
    """The name of each value: by the first spelling that no other value has, else the value."""
    names = {}
    for value in values:
        ways = [(way(value), [way(each) for each in values]) for way in spellings]
        names[value] = next((name for name, all_names in ways if all_names.count(name) == 1), value)
    return names


def _readable(field: str, value: str) -> str:
    """The value, if a folder's name may contain it; else its permitted part and a hash."""
    shown = short(field, value)
    kept = re.sub(r"[^A-Za-z0-9._+=-]+", "-", shown).strip("-")
    return kept if kept == shown else f"{kept}~{short_hash(value, 6)}"


def short_hash(text: str, digits: int) -> str:
    """So many hexadecimal digits that stand for the text, in names that must stay short."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def check_folder(folder: epath.Path, what: str) -> None:
    """Raises UserError if the folder of `what`, such as a study, is that of something else."""
    for file, owner in ((workdir.CONFIG_FILE, "a training"), (FILE, "a sweep")):
        if (folder / file).exists():
            raise UserError(f"{folder} belongs to {owner}: give the {what} another --workdir.")


def check_same(
    folder: epath.Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any], hint: str = ""
) -> None:
    """Raises UserError if the folder belongs to another `what`, such as a sweep."""
    both = [(field, before.get(field), now.get(field)) for field in {**now, **before}]
    changes = "".join(f"\n  {f}: {old!r} there, {new!r} here" for f, old, new in both if old != new)
    if changes:
        rule = f"belongs to another {what}:{changes}\n{hint}Give another --workdir."
        raise UserError(rule, field=str(folder))


def add_points(folder: epath.Path, grid: SweepGrid) -> tuple[list[Point], list[Point]]:
    """(all points of the folder, the grid's points), the grid's added to the folder's."""
    kept = _read(folder)
    if kept:
        there = kept["common"] | dict.fromkeys(kept["axes"], "an axis")
        here = grid.common | dict.fromkeys(grid.axes, "an axis")
        there["other flags"], here["other flags"] = " ".join(kept["flags"]), " ".join(grid.flags)
        hint = "Values may be added to an axis that is there. "
        check_same(folder, "sweep", there, here, hint)
    wanted, before = grid.points(), kept.get("points", [])
    values = [*before, *(point for point in wanted if point not in before)]
    shared = (grid.common, grid.flags, grid.launched)
    all_points = [Point(number, each, *shared) for number, each in enumerate(values, start=1)]
    _check(folder, grid, all_points)
    return all_points, [point for point in all_points if point.values in wanted]


def write(folder: epath.Path, points: Sequence[Point], grid: SweepGrid) -> None:
    workdir.make(folder)
    document = {"common": grid.common, "flags": list(grid.flags), "axes": list(grid.axes)}
    workdir.save_json(folder / FILE, document | {"points": [point.values for point in points]})


def _parse(document: Any) -> dict[str, Any]:
    """The entries of sweep.json, all of texts."""
    kept = {key: document[key] for key in KEYS}
    maps, lists = [kept["common"], *kept["points"]], (kept["flags"], kept["axes"])
    texts = [x for each in maps for x in each.values()] + [x for each in lists for x in each]
    if not all(isinstance(x, str) for x in texts):
        raise TypeError("an entry is not a text")
    return kept


def _read(folder: epath.Path) -> dict[str, Any]:
    remedy = "Move it away, and give the whole grid again: trainings below it continue."
    kept = workdir.read_json(folder / FILE, _parse, remedy)
    if kept is None:
        check_folder(folder, "sweep")
    return kept or {}


def _check(folder: epath.Path, grid: SweepGrid, points: Sequence[Point]) -> None:
    choices = {field: (value,) for field, value in grid.common.items()} | grid.axes
    errors = ErrorCollector()
    for config in choices.pop(CONFIG):
        for field, values in choices.items() or [("", ("",))]:
            for value in values:
                errors.attempt("", configs.load, config, [f"{field}={value}"] if field else [])
    raise_wrong(errors)
    seen: dict[str, str] = {}  # folder, and config as JSON -> the first point's name
    for point in points:
        errors.attempt(f"{point.name}: ", _check_point, folder, point, seen)
    raise_wrong(errors)


def _check_point(folder: epath.Path, point: Point, seen: dict[str, str]) -> None:
    config = configs.to_dict(point.load())
    is_taken, seen[point.name] = point.name in seen, point.name
    begun = "" if ALLOW in point.flags else _changes(folder / point.name, config, point)
    first = seen.setdefault(json.dumps(config), point.name)
    for is_wrong, rule in (
        (is_taken, "two points would share this folder: rename a config file."),
        (begun, f"begun with another config: {begun}. Give another --workdir."),
        (first != point.name, f"the same training as {first}; leave one of them out."),
    ):
        if is_wrong:
            raise UserError(rule)


def raise_wrong(errors: ErrorCollector) -> None:
    if errors.found:
        listed = "".join(f"\n  {what}{error}" for what, error in errors.found)
        hint = f"\n{HINT}" if "numbers" in listed else ""
        raise UserError(f"Nothing was started: the grid is not right.{listed}{hint}")


def _changes(folder: epath.Path, config: Mapping[str, Any], point: Point) -> str:
    """How the config differs from that with which the training there began.

    Of one that adapts, to a machine that may not be this one, only what the point sets is compared.
    """
    saved_step = workdir.saved_step(folder)
    if not (folder / workdir.CONFIG_FILE).exists() or not saved_step:
        return ""  # it has not begun, or will begin again
    before = workdir.read_document(folder)["config"]
    there, here = ({"config": c, "fingerprint": {}} for c in (before, config))
    _, changes = MAY_DIFFER.differences(there, here, saved_step=saved_step)
    if config_file.adapt(point.all_values[CONFIG]) is not None:
        changes = {field: change for field, change in changes.items() if field in point.fields}
    return "; ".join(changes.values())
