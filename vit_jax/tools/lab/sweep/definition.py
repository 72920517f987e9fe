"""A sweep's folder: sweep.json keeps its grid, and other grids are refused.

{"common": {"config": ..., field: value}, "flags": [...], "axes": [field, ...],
 "points": [{field: value}, ...]}
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.core.schema import renamed
from vit_jax.run.parts.outputs import MAY_DIFFER
from vit_jax.store import workdir
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import CONFIG, HINT, Point, SweepGrid

FILE = "sweep.json"
ALLOW = "--allow_config_change"  # a flag of vit_jax.train
MAX_NAMED = 3  # points named in a message
LIKE = {"common": {"": ""}, "flags": [""], "axes": [""], "points": [{"": ""}]}


def points(folder: epath.Path, grid: SweepGrid) -> tuple[list[Point], list[Point]]:
    """(all points of the folder, the grid's points), the grid's added to the folder's.

    Raises:
      UserError: the folder is for another sweep; points are alike; their configs are wrong.
    """
    there = _read(folder)
    if there:
        _check_same(folder, there, grid)
    _check_values(grid)
    wanted, before = grid.points(), there.get("points", [])
    values = [*before, *(point for point in wanted if point not in before)]
    every = [Point(k, v, grid.common, grid.flags) for k, v in enumerate(values, start=1)]
    _check(folder, every)
    return every, [point for point in every if point.values in wanted]


def write(folder: epath.Path, points: Sequence[Point], grid: SweepGrid) -> None:
    """Keeps the grid in the folder, which it makes. UserError if it cannot."""
    workdir.make(folder)
    document = {
        "common": grid.common,
        "flags": list(grid.flags),
        "axes": list(grid.axes),
        "points": [point.values for point in points],
    }
    try:
        write_text(folder / FILE, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def _read(folder: epath.Path) -> dict[str, Any]:
    """The contents of sweep.json; {} if there is none."""
    file = folder / FILE
    if not file.exists():
        if (folder / workdir.CONFIG_FILE).exists():
            raise UserError(
                f"{folder} is the work directory of a training: give the sweep another --workdir."
            )
        return {}
    try:
        document = parse_json(file.read_bytes())
        there = {key: _checked(document[key], like) for key, like in LIKE.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is damaged ({error}). Delete it, and give the whole grid again: trainings "
            "below it go on."
        ) from error
    # The folders of its points have the old names in theirs.
    for name in (*there["axes"], *there["common"]):
        if name in renamed.FIELDS:
            raise UserError(
                f"{file} is of an earlier version: {name} is {renamed.FIELDS[name]} now. Give the "
                "sweep another --workdir; the trainings below this one can be resumed one by one."
            )
    return there


def _checked(value: Any, like: Any) -> Any:
    """The value, checked to have the type of `like`: {"": ""} is strings by name. TypeError."""
    if type(value) is not type(like):
        raise TypeError(f"{value!r} is not a {type(like).__name__}")
    if isinstance(like, list):
        return [_checked(one, like[0]) for one in value]
    if isinstance(like, dict):
        return {name: _checked(one, like[""]) for name, one in value.items()}
    return value


def _check_same(folder: epath.Path, there: Mapping[str, Any], grid: SweepGrid) -> None:
    """UserError that lists what differs besides the values of the axes."""
    before = dict(there["common"]) | dict.fromkeys(there["axes"], "an axis")
    now = dict(grid.common) | dict.fromkeys(grid.axes, "an axis")
    before["other flags"], now["other flags"] = " ".join(there["flags"]), " ".join(grid.flags)
    changes = [
        f"\n  {field}: {before.get(field) or 'nothing'} there, {now.get(field) or 'nothing'} here"
        for field in now | before
        if before.get(field) != now.get(field)
    ]
    if changes:
        raise UserError(
            f"{folder} belongs to another sweep:{''.join(changes)}\nValues may be added to an axis "
            "that is there; for anything else give another --workdir."
        )


def _check_values(grid: SweepGrid) -> None:
    """UserError with all errors of single values, in any combination."""
    choices = {field: (value,) for field, value in grid.common.items()} | grid.axes
    problems: dict[str, None] = {}
    for config in choices.pop(CONFIG):
        for field, values in choices.items() or [("", ("",))]:
            for value in values:
                try:
                    configs.load(config, [f"{field}={value}"] if field else [])
                except UserError as error:
                    problems[str(error)] = None
    _tell(list(problems))


def _check(folder: epath.Path, points: Sequence[Point]) -> None:
    """UserError with all errors of the points, each once."""
    problems: dict[str, list[str]] = {}
    seen: dict[str, str] = {}  # config as JSON -> the first point's name
    folders: set[str] = set()
    for point in points:
        try:
            if point.name in folders:
                raise UserError("two points would share this folder: rename a config file.")
            folders.add(point.name)
            config = configs.to_dict(configs.load(point.config, point.overrides))
            if ALLOW not in point.flags:
                _check_workdir(folder / point.name, config)
            first = seen.setdefault(json.dumps(config), point.name)
            if first != point.name:
                raise UserError(f"the same training as {first}; leave one of them out.")
        except UserError as error:
            problems.setdefault(str(error), []).append(point.name)
    lines = []
    for problem, names in problems.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        lines.append(f"{'; '.join(names[:MAX_NAMED])}{more}: {problem}")
    _tell(lines)


def _tell(problems: Sequence[str]) -> None:
    if problems:
        hint = f"\n{HINT}" if any("such as" in problem for problem in problems) else ""
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise UserError(f"Nothing was started: the grid is not right.{lines}{hint}")


def _check_workdir(folder: epath.Path, config: Mapping[str, Any]) -> None:
    """UserError if the training there was begun with other values, as from an edited file."""
    saved_step = progress.saved_step(folder)
    if not (folder / workdir.CONFIG_FILE).exists() or not saved_step:
        return  # it has not begun, or will begin again
    before = workdir.read_document(folder)["config"]
    there, here = ({"config": c, "fingerprint": {}} for c in (before, config))
    _, changes = MAY_DIFFER.differences(there, here, saved_step=saved_step)
    if changes:
        said = "; ".join(changes.values())
        raise UserError(f"begun with another config: {said}. Give another --workdir.")
