"""Declared fields: everything about a field of a model, at the field itself.

    gelu: str = field("tanh", "`tanh` [this] or `exact`", choices=("tanh", "exact"), trained=HIDDEN)

The config's section, the checks, a checkpoint's architecture, and the weight formats that cannot
represent it follow from this.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from vit_jax.core import errors

# How weights depend on a field that they are trained with.
IN_SHAPES = "shapes"  # visible in the shapes or names of parameters
HIDDEN = "hidden"  # affects what the parameters compute, but not always their shapes
ANY = None  # values in other formats: all

# ImageNet-21k has 21,843. Every example has a vector of that length in memory.
MOST_CLASSES = 2**24
COUNT = (1, 2**20)  # bounds of sizes: more would be a mistake
ABOVE_0 = math.nextafter(0, 1)  # a lower bound that excludes 0
UP_TO_1 = math.nextafter(1, 2)  # an upper bound that includes 1

Values = tuple[Any, ...] | None


@dataclasses.dataclass(frozen=True)
class Declared:
    """A field's declaration; see `field`."""

    doc: str | None
    bounds: tuple[float, float] | None
    choices: tuple[str, ...] | None
    trained: str | None
    elsewhere: Mapping[str, Values] | Values
    hint: Any = None  # its type, which `of` fills in

    def optional(self) -> Any:
        """The field of a config that overrides this one, or leaves it to the model by None."""
        return dataclasses.field(default=None, metadata={"declared": self})


def field(
    default: Any = dataclasses.MISSING,
    doc: str | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    choices: Iterable[str] | None = None,
    trained: str | None = None,
    elsewhere: Mapping[str, Values] | Values | Literal["default"] = "default",
) -> Any:
    """Declares a field of a dataclass.

    Args:
      default: without one, the field must be given; {}: an empty dictionary for each instance.
      doc: its meaning in docs/config.md; None: not a field of a config.
      bounds: inclusive lower and exclusive upper bound; for a tuple: of each of its numbers.
      choices: the words it takes. None is valid too if the type allows it.
      trained: IN_SHAPES or HIDDEN if trained weights depend on it; None: it affects only further
        training or computation.
      elsewhere: the values that the models of other projects have, by format where formats differ;
        ANY: all. Default: of a field that weights are trained with its default alone, else all.
    """
    own = () if default is dataclasses.MISSING else (default,)
    known = (own if trained and own else ANY) if isinstance(elsewhere, str) else elsewhere
    words = None if choices is None else tuple(choices)
    about = Declared(doc, bounds, words, trained, known)
    made = {"default_factory": dict} if default == {} else {"default": default}
    return dataclasses.field(**made, metadata={"declared": about})


def words(choices: Iterable[str]) -> str:
    """The choices in a sentence: "`a`, `b` or `c`"."""
    *first, last = (f"`{choice}`" for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


_PLAIN = Declared(doc=None, bounds=None, choices=None, trained=None, elsewhere=ANY)


def of(spec: Any) -> dict[str, Declared]:
    """Declarations of the fields of a dataclass, or of an instance, by name.

    A plain field, without a declaration, takes any value of its type.
    """
    hints = typing.get_type_hints(spec if isinstance(spec, type) else type(spec))
    return {
        f.name: dataclasses.replace(f.metadata.get("declared", _PLAIN), hint=hints[f.name])
        for f in dataclasses.fields(spec)
    }


def trained(spec: Any, *, as_: str | None = None) -> tuple[str, ...]:
    """Names of the fields that weights are trained with; `as_`: only IN_SHAPES or HIDDEN."""
    return tuple(n for n, f in of(spec).items() if f.trained and as_ in (None, f.trained))


def without_a_place(spec: Any, to: str, stated: Iterable[str] = ()) -> list[str]:
    """Each field as "name=value" whose value models in the format `to` cannot have.

    stated: names of fields that can have any value there.
    """
    values = {
        name: f.elsewhere[to] if isinstance(f.elsewhere, Mapping) else f.elsewhere
        for name, f in of(spec).items()
        if name not in stated
    }
    return [
        f"{name}={getattr(spec, name)}"
        for name, known in values.items()
        if known is not ANY and getattr(spec, name) not in known
    ]


def check(spec: Any) -> None:
    """Raises UserError for a model's field of another type, an unknown word, or out of bounds."""
    for field, about in of(spec).items():
        name, value = f"model.{field}", getattr(spec, field)
        _check_type(name, value, about.hint)
        optional = type(None) in typing.get_args(about.hint)
        if about.choices and value not in (*about.choices, *([None] if optional else [])):
            near = errors.nearest(errors.safe_str(value), about.choices)
            raise errors.UserError(f"{name}={errors.safe_repr(value)}. {near}")
        check_bounds(name, value, about.bounds)


def check_all_bounds(section: Any, where: str) -> None:
    """Raises UserError for a number out of bounds, in this dataclass and the sections in it."""
    for f in dataclasses.fields(section):
        name, value = f"{where}.{f.name}", getattr(section, f.name)
        if isinstance(value, Mapping):
            for key, each in value.items():
                if dataclasses.is_dataclass(each):  # a plug-in's field may map names to numbers
                    check_all_bounds(each, f"{name}.{key}")
        elif dataclasses.is_dataclass(value):
            check_all_bounds(value, name)
        elif "declared" in f.metadata:
            check_bounds(name, value, f.metadata["declared"].bounds)


def check_bounds(name: str, value: Any, bounds: tuple[float, float] | None) -> None:
    """Raises UserError unless the value, or each of a tuple's, is None, a word, or in bounds."""
    if bounds is None:
        return
    smallest, below = bounds
    values = value if isinstance(value, tuple | list) else (value,)
    if any(not isinstance(x, str | None) and not smallest <= x < below for x in values):
        most = math.nextafter(below, 0)
        limit = f" and at most {most:g}" if most == 1 else f" and below {below:.16g}"
        least = "more than 0" if smallest == ABOVE_0 else f"at least {smallest:.16g}"
        end = "" if math.isinf(below) else limit
        raise errors.UserError(f"{name}={errors.safe_str(value)}: give {least}{end}.")


def _check_type(name: str, value: Any, hint: Any) -> None:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    options = typing.get_args(hint) if is_union else (hint,)
    if not any(_is_of_type(value, option) for option in options):
        kinds = [
            "finite number" if option is float else getattr(option, "__name__", str(option))
            for option in options
            if option is not type(None)
        ]
        shown = repr(value) if isinstance(value, str) else value
        raise errors.UserError(f"is not of type {' or '.join(kinds)}.", field=name, value=shown)


def _is_of_type(value: Any, hint: Any) -> bool:
    if hint is type(None):
        return value is None
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple | list) and all(_is_of_type(each, item) for each in value)
    if hint is float:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and math.isfinite(typing.cast(float, value))
    if hint is int:
        return is_whole(value)
    # Words are looked up among their choices, which the message lists.
    return hint is not bool or isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Returns whether a value is an integer, Python's or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
