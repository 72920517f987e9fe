"""The arguments of a training, in which commas separate the values of an axis.

    --config configs/vit_digits.py --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

are two axes and six points. A comma inside brackets or quotes belongs to its value.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.core.schema import config_file, strict

CONFIG = "config"  # the axis of config files
NOT_FOR_TRAININGS = (
    *("workdir", "name", "slots", "launcher", "follow", "nofollow", "metric", "dry_run"),
    *("slot_variable", "max_restarts", "retry_failed", "check", "nocheck"),
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
QUOTES = "'\""
HINT = "A comma separates values, but not inside brackets or quotes: [0.5,0.5,0.5] is one."
MAX_NAME = 120  # characters of a folder's name; file systems take 255 bytes


class SweepGrid(NamedTuple):
    """A requested grid.

    Attributes:
      common: what all points share, "optim.lr" -> "1e-3"; the config file is CONFIG.
      axes: the fields in which they differ -> their values, at least two.
      flags: other flags of vit_jax.train.
    """

    common: dict[str, str]
    axes: dict[str, tuple[str, ...]]
    flags: tuple[str, ...] = ()

    def points(self) -> list[dict[str, str]]:
        """The points, as values by axis; the last axis changes fastest."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]


class Point(NamedTuple):
    """A training of a sweep.

    Attributes:
      number: its place in the sweep, from 1, which stays the same when points are added.
      values: its value on each axis.
      common: the values that it shares with all others.
      flags: other flags of vit_jax.train.
    """

    number: int
    values: dict[str, str]
    common: dict[str, str]
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its work directory."""
        return name(self.values)

    @property
    def config(self) -> str:
        """The config file."""
        return self.values.get(CONFIG) or self.common[CONFIG]

    @property
    def overrides(self) -> list[str]:
        """Overrides of config fields, "optim.lr=1e-3"."""
        fields = self.common | self.values
        return [f"{field}={value}" for field, value in fields.items() if field != CONFIG]

    def arguments(self, workdir: str) -> list[str]:
        """The arguments of vit_jax.train."""
        overrides = [f"{command.PREFIX}{override}" for override in self.overrides]
        return ["--config", self.config, "--workdir", workdir, *overrides, *self.flags]


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
        _take_back(field, values, common, axes)
        if len(values) == 1:
            common[field] = values[0]
        elif "" in values:
            raise UserError(f"{field}={','.join(values)}: an empty value between commas.")
        elif len(set(values)) < len(values):
            raise UserError(f"{field}={','.join(values)}: a value is given twice. {HINT}")
        else:
            axes[field] = tuple(values)
    if CONFIG not in common and CONFIG not in axes:
        raise UserError(
            'No config: give what vit_jax.train gets behind " -- ", with commas between values:\n'
            "  scripts/sweep.sh --workdir=runs/lr -- --config configs/vit_digits.py "
            "--config.optim.lr=1e-3,3e-3"
        )
    return SweepGrid(common, axes, tuple(flags))


def of_config(config: str, overrides: Sequence[str]) -> SweepGrid:
    """The grid of a config file and "optim.lr=1e-3,3e-3".

    UserError if they are wrong; of the values, the first are looked at.
    """
    grid = parse([f"--{CONFIG}", config, *(f"{command.PREFIX}{each}" for each in overrides)])
    first = Point(0, grid.points()[0], grid.common)
    configs.load(first.config, first.overrides)
    return grid


def _take_back(
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
        raise UserError(f"{text}: {quote or open_brackets[-1]} is missing at the end of a value.")
    return [_bare(value.strip()) for value in [*values, text[begin:]]]


def _bare(value: str) -> str:
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


def name(values: Mapping[str, str]) -> str:
    """A point's folder name, unique in the sweep: "optim.lr=1e-3,seed=0"."""
    parts = [f"{field}={_readable(field, value)}" for field, value in values.items()]
    full = ",".join(parts) or "run"
    return full if len(full) <= MAX_NAME else f"{full[: MAX_NAME - 9]}~{_hash(full, 8)}"


def _readable(field: str, value: str) -> str:
    """The value, if a folder's name may contain it; else its permitted part and a hash."""
    shown = value
    if field == CONFIG:  # configs/vit_digits.py -> vit_digits
        path, colon, variant = value.partition(":")
        shown = Path(path).stem + colon + variant
    kept = re.sub(r"[^A-Za-z0-9._+=-]+", "-", shown).strip("-")
    return kept if kept == shown else f"{kept}~{_hash(value, 6)}"


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
