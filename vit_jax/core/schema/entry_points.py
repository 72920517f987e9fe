"""Parts by name: our own, and those that other packages add; see docs/plugins.md.

Both are entry points, "module:attribute", ours in tables beside the code that asks for them. One is
loaded only when its name is asked for, so that a run imports what its config names and nothing
else. Ours win. Names are listed without loading anything.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from vit_jax.core import errors

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PREFIX = "vit_jax."


class _Rule(NamedTuple):
    """A requirement on the objects of a group: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


def left_open(method: F) -> F:
    """Marks a method of a base class that a part has to give itself, or another in its place."""
    method.left_open = True  # type: ignore[attr-defined]
    return method


def _gives(part: Any, name: str) -> bool:
    method = getattr(part, name, None)
    return callable(method) and not getattr(method, "left_open", False)


def _is_dataclass_with(*names: str) -> Callable[[Any], bool]:
    """A test for methods; "make or evaluator" stands for one of two."""

    def holds(x: Any) -> bool:
        is_class = isinstance(x, type) and dataclasses.is_dataclass(x)
        return is_class and all(any(_gives(x, n) for n in name.split(" or ")) for name in names)

    return holds


GROUPS: dict[str, _Rule] = {
    "models": _Rule(
        "a vit_jax.models.family.Family",
        lambda x: all(callable(getattr(x, name, None)) for name in ("named", "module", "spec")),
    ),
    "sources": _Rule("a function of a Request that gives a Source", callable),
    "ops": _Rule("a function that gives an Op", callable),
    "evaluators": _Rule(
        "a dataclass that extends EvalConfig, with `numbers` and `make` or `evaluator`",
        _is_dataclass_with("numbers", "make or evaluator"),
    ),
    "losses": _Rule(
        "a dataclass that extends LossConfig, with `compute`",
        _is_dataclass_with("prepare", "compute"),
    ),
    "methods": _Rule(
        "a dataclass with what vit_jax.learning.method.Method asks for",
        _is_dataclass_with("check", "extend", "averaging", "loss"),
    ),
    "optimizers": _Rule(
        "a dataclass that extends OptimConfig, with `rule`",
        lambda x: _is_dataclass_with("rule")(x) and hasattr(x, "average"),
    ),
    "metrics": _Rule(
        "a dataclass that extends Metric, with `of_batch` and `of_split`",
        _is_dataclass_with("of_batch", "of_split"),
    ),
    "schedules": _Rule(
        "a dataclass that extends Decay, with `remains`",
        lambda x: _is_dataclass_with("remains")(x) and hasattr(x, "to_zero"),
    ),
    "loggers": _Rule("a function of (workdir, config) that gives a logger", callable),
}

_added: dict[tuple[str, str], Any] = {}
_loaded: dict[tuple[str, str], tuple[Any, str, str]] = {}  # object, its distribution, version


class Parts(Mapping[str, T]):
    """Our own parts of a group, by name; `find` and `names` know those of other packages too."""

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        """own: "module:attribute" by name."""
        self._group, self._own = group, own

    def __getitem__(self, name: str) -> T:
        """Our own part of this name, imported now if it has not been before."""
        return importlib.metadata.EntryPoint(name, self._own[name], PREFIX + self._group).load()

    def __contains__(self, name: object) -> bool:
        return name in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def find(self, name: str) -> T | None:
        """The part of this name; None if there is none. UserError as the function `find`."""
        return self[name] if name in self else find(self._group, name)

    def names(self) -> list[str]:
        """The names of all parts; nothing is loaded."""
        return list(dict.fromkeys([*self, *names(self._group)]))

    def get_named(self, field: str, name: str, more: Iterable[str] = ()) -> T:
        """The part that a field of the config names. UserError, as `nearest`, if there is none."""
        part = self.find(name)
        if part is None:
            raise errors.UserError(f"config.{field}={name!r}. {self.nearest(name, more)}")
        return part

    def nearest(self, name: str, more: Iterable[str] = ()) -> str:
        """The end of a message: names near to an unknown one; `more`: names in other tables."""
        near = errors.nearest(name, [*more, *self.names()])
        return f"{near} A plug-in has to be installed.".lstrip()


def add(group: str, name: str, part: Any) -> None:
    """Adds a part to this process; a second one of this name takes its place.

    KeyError for another group, UserError for a part that is not what its group takes.
    """
    _check(group, name, part, "what was added")
    _added[group, name] = part


def find(group: str, name: str) -> Any:
    """The part of this name; None if there is none.

    UserError for a name that two distributions have, or an entry point that cannot be imported.
    """
    if (group, name) in _added:
        return _added[group, name]
    if (group, name) not in _loaded:
        there = [entry for entry in _entries(group) if entry.name == name]
        if not there:
            return None
        if len(there) > 1:
            givers = " and ".join(sorted(map(_distribution, there)))
            raise errors.UserError(f"{PREFIX}{group}: {name!r} is of {givers}: uninstall one.")
        entry = there[0]
        try:
            part = entry.load()
        except (Exception, SystemExit) as error:
            rule = f"of {_distribution(entry)} cannot be imported: {errors.describe_error(error)}"
            raise errors.UserError(rule, field=f"{PREFIX}{group}: {name!r}") from error
        _check(group, name, part, f"{entry.value} of {_distribution(entry)}")
        version = entry.dist.version if entry.dist else ""
        _loaded[group, name] = part, _distribution(entry), version
    return _loaded[group, name][0]


def names(group: str) -> list[str]:
    """The names that there are beside our own; nothing is loaded."""
    added = [name for of, name in _added if of == group]
    return sorted({*added, *(entry.name for entry in _entries(group))})


def in_use(group: str) -> list[Any]:
    """The parts that were added or found so far."""
    added = [part for (of, _), part in _added.items() if of == group]
    return added + [part for (of, _), (part, *_) in _loaded.items() if of == group]


def versions() -> dict[str, str]:
    """Versions of the distributions whose parts were found so far, by name."""
    return {distribution: version for _, distribution, version in _loaded.values()}


def _entries(group: str) -> list[importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=PREFIX + group)
    return list(
        {(entry.name, entry.value, _distribution(entry)): entry for entry in found}.values()
    )


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unknown distribution"


def _check(group: str, name: str, part: Any, what: str) -> None:
    if not GROUPS[group].holds(part):
        rule = f"must be {GROUPS[group].words}, not {part!r}."
        raise errors.UserError(rule, field=f"{PREFIX}{group}: {name!r}")
