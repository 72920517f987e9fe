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
from vit_jax.core.schema import config_file, renamed, strict
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
SCHEMA = {"common": {"": ""}, "flags": [""], "axes": [""], "points": [{"": ""}]}  # in sweep.json


class SweepGrid(NamedTuple):
    """A requested grid.

    Attributes:
      common: what all points share, "optim.lr" -> "1e-3"; the config file is CONFIG.
      axes: the fields in which they differ -> their values, at least two.
      flags: other flags of vit_jax.train.
      launched: whether its trainings are jobs, whose machines are taken to have accelerators.
    """

    common: dict[str, str]
    axes: dict[str, tuple[str, ...]]
    flags: tuple[str, ...] = ()
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
    """A training of a sweep.

    Attributes:
      number: its place in the sweep, from 1, which stays the same when points are added.
      values: its value on each axis.
      common: the values that it shares with all others.
      flags, launched: those of the grid.
    """

    number: int
    values: dict[str, str]
    common: dict[str, str]
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
        """Its values, and those that it shares with all others."""
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
        """The config, as the training will have it. Raises UserError if it is wrong."""
        on_cpu = (lambda: False) if self.launched else _trains_on_cpu
        return adapt.load(self.all_values[CONFIG], self.overrides, on_cpu=on_cpu)

    def arguments(self, workdir: str) -> list[str]:
        """The arguments of vit_jax.train."""
        overrides = [f"{command.PREFIX}{override}" for override in self.overrides]
        config = self.all_values[CONFIG]
        return ["--config", config, "--workdir", workdir, *overrides, *self.flags]


@functools.cache
def _trains_on_cpu() -> bool:
    """Whether a training of this machine finds only its processor.

    Asked in a process of its own: an accelerator that this one takes is lost to the trainings.
    """
    asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(asked, capture_output=True, check=False).stdout.strip() == b"cpu"


def parse(arguments: Sequence[str]) -> SweepGrid:
    """The grid of arguments for vit_jax.train. UserError if they are wrong."""
    common: dict[str, str] = {}
    axes: dict[str, tuple[str, ...]] = {}
    flags = []
    for flag, value in _flags(command.spell_overrides(arguments)):
        if flag in NOT_FOR_TRAININGS:
            raise UserError(
                f"--{flag} is not for the trainings of a sweep. Flags of the sweep, its "
                "--workdir too, come before the --: each training gets a folder below that."
            )
        if flag == CONFIG:
            field, values = CONFIG, _config_files(value or "")
        elif flag == command.OVERRIDE:
            field, eq, text = (value or "").partition("=")
            if not eq:
                raise UserError(f"--config.{field} has no value: write --config.{field}=VALUE.")
            values = split(text)
        else:
            flags.append(f"--{flag}" if value is None else f"--{flag}={value}")
            continue
        _drop_overridden(field, values, common, axes)
        if len(values) == 1:
            common[field] = values[0]
        elif "" in values:
            raise UserError(f"{field}={','.join(values)}: an empty value between commas. {HINT}")
        elif len(set(values)) < len(values):
            raise UserError(f"{field}={','.join(values)}: a value is given twice. {HINT}")
        else:
            axes[field] = tuple(values)
    if CONFIG not in common and CONFIG not in axes:
        raise UserError(
            'No config: give what vit_jax.train gets behind " -- ", with commas between values:\n'
            "  vit-jax sweep --workdir=runs/lr -- --config configs/vit_digits.py "
            "--config.optim.lr=1e-3,3e-3"
        )
    return SweepGrid(common, axes, tuple(flags))


def from_config(config: str, overrides: Sequence[str], *, launched: bool = False) -> SweepGrid:
    """The grid of a config file and "optim.lr=1e-3,3e-3".

    UserError if they are wrong; of the values, the first are looked at.
    """
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
        flag, eq, value = argument.partition("=")
        if not re.fullmatch(r"--?\w[\w.]*", flag):
            raise UserError(
                f"{argument!r} is not a flag of vit_jax.train. Write flags as --flag=value, "
                "and put what has spaces in quotes."
            )
        flag = flag.lstrip("-")
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
    changes = [
        f"\n  {field}: {before.get(field)!r} there, {now.get(field)!r} here"
        for field in {**now, **before}
        if before.get(field) != now.get(field)
    ]
    if changes:
        raise UserError(
            f"{folder} belongs to another {what}:{''.join(changes)}\n{hint}Give another --workdir."
        )


def add_points(folder: epath.Path, grid: SweepGrid) -> tuple[list[Point], list[Point]]:
    """(all points of the folder, the grid's points), the grid's added to the folder's.

    Raises:
      UserError: the folder is for another sweep; points are alike; their configs are wrong.
    """
    kept = _read(folder)
    if kept:
        there = kept["common"] | dict.fromkeys(kept["axes"], "an axis")
        here = grid.common | dict.fromkeys(grid.axes, "an axis")
        there["other flags"], here["other flags"] = " ".join(kept["flags"]), " ".join(grid.flags)
        hint = "Values may be added to an axis that is there. "
        check_same(folder, "sweep", there, here, hint)
    _check_values(grid)
    wanted, before = grid.points(), kept.get("points", [])
    values = [*before, *(point for point in wanted if point not in before)]
    shared = (grid.common, grid.flags, grid.launched)
    all_points = [Point(number, each, *shared) for number, each in enumerate(values, start=1)]
    _check(folder, all_points)
    return all_points, [point for point in all_points if point.values in wanted]


def write(folder: epath.Path, points: Sequence[Point], grid: SweepGrid) -> None:
    """Keeps the grid in the folder, which it makes. UserError if it cannot."""
    workdir.make(folder)
    document = {
        "common": grid.common,
        "flags": list(grid.flags),
        "axes": list(grid.axes),
        "points": [point.values for point in points],
    }
    workdir.save_json(folder / FILE, document)


def _read(folder: epath.Path) -> dict[str, Any]:
    """The contents of sweep.json; {} if there is none."""
    file = folder / FILE
    kept = workdir.read_json(
        file,
        lambda document: {key: _validate(document[key], like) for key, like in SCHEMA.items()},
        "Delete it, and give the whole grid again: trainings below it continue.",
    )
    if kept is None:
        check_folder(folder, "sweep")
        return {}
    # The folders of its points have the old names in theirs.
    for name in (*kept["axes"], *kept["common"]):
        if name in renamed.FIELDS:
            raise UserError(
                f"{file} is of an earlier version: {name} is {renamed.FIELDS[name]} now. Give the "
                "sweep another --workdir; the trainings below this one can be resumed one by one."
            )
    return kept


def _validate(value: Any, like: Any) -> Any:
    """The value, checked to have the type of `like`: {"": ""} is strings by name. TypeError."""
    if type(value) is not type(like):
        raise TypeError(f"{value!r} is not a {type(like).__name__}")
    if isinstance(like, list):
        return [_validate(one, like[0]) for one in value]
    if isinstance(like, dict):
        return {name: _validate(one, like[""]) for name, one in value.items()}
    return value


def _check_values(grid: SweepGrid) -> None:
    """Raises UserError with all errors of single values, which a point may have several of."""
    choices = {field: (value,) for field, value in grid.common.items()} | grid.axes
    errors = ErrorCollector()
    for config in choices.pop(CONFIG):
        for field, values in choices.items() or [("", ("",))]:
            for value in values:
                errors.attempt(field, configs.load, config, [f"{field}={value}"] if field else [])
    _raise([str(each.error) for each in errors.found])


def _check(folder: epath.Path, points: Sequence[Point]) -> None:
    """Raises a UserError with all errors of the points, each once."""
    problems: dict[str, list[str]] = {}
    seen: dict[str, str] = {}  # config as JSON -> the first point's name
    folders: set[str] = set()
    for point in points:
        try:
            if point.name in folders:
                raise UserError("two points would share this folder: rename a config file.")
            folders.add(point.name)
            config = configs.to_dict(point.load())
            if ALLOW not in point.flags:
                _check_workdir(folder / point.name, config, point)
            first = seen.setdefault(json.dumps(config), point.name)
            if first != point.name:
                raise UserError(f"the same training as {first}; leave one of them out.")
        except UserError as error:
            problems.setdefault(str(error), []).append(point.name)
    lines = []
    for problem, names in problems.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        lines.append(f"{'; '.join(names[:MAX_NAMED])}{more}: {problem}")
    _raise(lines)


def _raise(lines: Sequence[str]) -> None:
    if lines:
        hint = f"\n{HINT}" if any("such as" in line for line in lines) else ""
        listed = "".join(f"\n  {line}" for line in lines)
        raise UserError(f"Nothing was started: the grid is not right.{listed}{hint}")


def _check_workdir(folder: epath.Path, config: Mapping[str, Any], point: Point) -> None:
    """Raises UserError if the training there began with another config.

    Of one that adapts, to a machine that may not be this one, only what the point sets is compared.
    """
    saved_step = workdir.saved_step(folder)
    if not (folder / workdir.CONFIG_FILE).exists() or not saved_step:
        return  # it has not begun, or will begin again
    before = workdir.read_document(folder)["config"]
    there, here = ({"config": c, "fingerprint": {}} for c in (before, config))
    _, changes = MAY_DIFFER.differences(there, here, saved_step=saved_step)
    if config_file.adapt(point.all_values[CONFIG]) is not None:
        changes = {field: change for field, change in changes.items() if field in point.fields}
    if changes:
        said = "; ".join(changes.values())
        raise UserError(f"begun with another config: {said}. Give another --workdir.")
