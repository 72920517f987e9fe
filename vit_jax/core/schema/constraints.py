"""Rules for fields of a config together, as data; a field's own bounds stand at the field."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError, nearest_multiple
from vit_jax.core.schema import strict


class Constraint(NamedTuple):
    """A rule that a config of legal values may break."""

    field: str  # the one to change, such as "input.repeats"; its value stands before the rule
    is_broken: Callable[[Any], Any]  # config -> whether it is; a truth value of any type
    rule: str  # a predicate and what to change; {section.field} stands for the value of that field
    # Config -> the nearest value that is valid, which the message ends with.
    nearest: Callable[[Any], Any] | None = None

    def check(self, config: Any) -> None:
        """Raises UserError if the config breaks the rule."""
        if self.is_broken(config):
            rule = re.sub(r"\{([a-z_.]+)\}", lambda name: str(_value(config, name[1])), self.rule)
            if self.nearest is not None:
                rule += f"; nearest: {self.nearest(config)}."
            raise UserError(rule, field=self.field, value=_value(config, self.field))


def _value(config: Any, field: str) -> Any:
    return functools.reduce(getattr, field.split("."), config)


def multiple_rule(field: str, divisor: Callable[[Any], int], rule: str) -> Constraint:
    """A rule for a field whose value `divisor(config)` has to divide."""
    return Constraint(
        field,
        lambda config: _value(config, field) % divisor(config),
        rule,
        lambda config: nearest_multiple(_value(config, field), divisor(config)),
    )


def value_rules(
    section: str, names: Iterable[str], is_broken: Callable[[Any, Any], Any], rule: str
) -> Iterator[Constraint]:
    """A rule for each of these fields, of its value and the config."""

    def of_value(config: Any, field: str) -> Any:
        return is_broken(_value(config, field), config)

    for field in (f"{section}.{name}" for name in names):
        yield Constraint(field, functools.partial(of_value, field=field), rule)


def unread_rules(
    section: str, names: Iterable[str], is_read: Callable[[Any], Any], rule: str
) -> Iterator[Constraint]:
    """A rule for each of these fields: its default, unless `is_read(config)`."""

    def is_broken(config: Any, name: str) -> bool:
        return not is_read(config) and not strict.is_default(getattr(config, section), name)

    for name in names:
        yield Constraint(f"{section}.{name}", functools.partial(is_broken, name=name), rule)


def choice_rules(choice: str, reads: Mapping[str, Collection[str]]) -> Iterator[Constraint]:
    """Rules for fields of a section that not all values of one of its fields read.

    choice: that field, such as "optim.name". reads: what each of its values reads, of those that
    not all do.
    """
    for name in sorted({name for fields in reads.values() for name in fields}):
        readers = [value for value, fields in reads.items() if name in fields]
        yield from unread_rules(
            choice.partition(".")[0],
            [name],
            functools.partial(lambda readers, config: _value(config, choice) in readers, readers),
            f"is not read by {choice}={{{choice}}}, only by {', '.join(readers)}: leave it out.",
        )
