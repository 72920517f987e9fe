"""Strict conversion of nested values to dataclasses: every name and every type is checked.

Values come from a file, with Python's types, or from the command line, as text.
"""

import ast
import dataclasses
import functools
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import ml_collections
import numpy as np

from vit_jax.core import errors

M = TypeVar("M")


class ByKind(NamedTuple):
    """A section whose class is chosen by its field `kind`: Annotated[Any, ByKind(...)].

    Several fields may each have a ByKind: the class is then `mixed` from those of all.

    Attributes:
      find: a kind -> its dataclass; UserError for a kind that does not exist.
      default: the kind of a section that names none.
      kinds: classes whose fields are listed, by kind; others are known by the `kind` alone.
      by: the field's name, where it is not `kind`. Where its default is (), it is any number of
        kinds, in the class at once.
    """

    find: Callable[[str], type]
    default: Any
    kinds: Mapping[str, type] = types.MappingProxyType({})
    by: str = "kind"


class ByValues(NamedTuple):
    """A section whose class depends on its values: Annotated[Any, ByValues(...)].

    Attributes:
      find: the section's values -> its dataclass.
      whole: gives the dataclass that has all fields, to list them.
    """

    find: Callable[[Mapping[str, Any]], type]
    whole: Callable[[], type]


def mixed(*classes: type) -> type:
    """A frozen dataclass with the fields and methods of all these; the first one's methods win.

    Two fields of one name are a UserError.
    """
    return classes[0] if len(classes) == 1 else _mixed(classes)


@functools.cache
def _mixed(classes: tuple[type, ...]) -> type:
    first: dict[str, dataclasses.Field[Any]] = {}
    for field in (field for cls in classes for field in dataclasses.fields(cls)):
        if first.setdefault(field.name, field) is not field:
            both = " and ".join(cls.__name__ for cls in classes)
            raise errors.UserError(f"{both} both have a field {field.name!r}.")
    # A class may be a base only once, and not before its own subclasses.
    extended = {base for cls in classes for base in cls.__mro__[1:]}
    bases = tuple(cls for cls in dict.fromkeys(classes) if cls not in extended)
    return dataclasses.make_dataclass(classes[-1].__name__, (), bases=bases, frozen=True)


def plain(values: Any) -> Any:
    """Copies nested values, with dictionaries in place of mappings and ConfigDicts."""
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    if isinstance(values, Mapping):
        return {name: plain(value) for name, value in values.items()}
    return values


def override(tree: dict[str, Any], path: str, text: str) -> None:
    """Sets "section.field" of `plain` values to a text, whose type `build` finds."""
    _set(tree, path.split("."), text, path)


def _set(tree: dict[str, Any], names: list[str], text: str, path: str) -> None:
    name, *rest = names
    if not rest:
        tree[name] = _Text(text)
        return
    below = tree.get(name)
    if below is not None and not isinstance(below, dict):
        _refuse(path, f"has {name}, which is not a section.")
    tree[name] = below or {}
    _set(tree[name], rest, text, path)


def overlaid(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The `plain` values of `tree`, overridden by `values`."""
    done = dict(tree)
    for name, value in values.items():
        below = done.get(name)
        is_in_both = isinstance(value, dict) and isinstance(below, dict)
        done[name] = overlaid(below or {}, value) if is_in_both else value
    return done


class _Text(str):
    """A value as written on the command line, its type still unknown."""


def leaves(cls: type, where: str = "") -> list[str]:
    """Every field of a dataclass and its sections, with dots; <name> is any name of a map."""
    names: list[str] = []
    for name, hint in _hints(cls).items():
        full = f"{where}.{name}".lstrip(".")
        if typing.get_origin(hint) is dict:
            names += _leaves_of_item(typing.get_args(hint)[1], f"{full}.<name>")
        elif by_kinds := _markers(hint, ByKind):
            kinds = by_kinds[0].kinds  # without them, other fields depend on the kind
            names += _leaves_of_item(hint, full) if kinds else [f"{full}.kind"]
        elif by_values := _markers(hint, ByValues):
            names += leaves(by_values[0].whole(), full)
        else:
            is_section = dataclasses.is_dataclass(hint)
            names += leaves(typing.cast(type, hint), full) if is_section else [full]
    return names


def _leaves_of_item(hint: Any, where: str) -> list[str]:
    """Fields of a section that a name stands for; of all its kinds, if it has any."""
    by_kinds = _markers(hint, ByKind)
    classes = [cls for by_kind in by_kinds for cls in by_kind.kinds.values()] or [hint]
    return list(dict.fromkeys(name for cls in classes for name in leaves(cls, where)))


def values_at(section: Any, path: str, where: str = "") -> list[tuple[str, Any]]:
    """(full name, value) of "section.field"; "evals.*.split" gives one for each key."""
    if not path:
        return [(where.lstrip("."), section)]
    name, _, rest = path.partition(".")
    below = section if name == "*" else {name: getattr(section, name)}
    return [pair for k, v in below.items() for pair in values_at(v, rest, f"{where}.{k}")]


def build(
    cls: type,
    values: Mapping[str, Any],
    where: str = "",
    root: type | None = None,
    choices: Mapping[str, Mapping[str, type]] = types.MappingProxyType({}),
) -> Any:
    """An instance of dataclass `cls` from nested values; names and types are checked.

    where, root: the section that this is, and its root class; default: `cls` is the root. choices:
    what its fields depend on, such as "loss.kind=softmax", and for each the known classes.
    """
    root = root or cls
    if not isinstance(values, Mapping):
        field = next(iter(_hints(cls)), "")
        rule = f"is a section, not {errors.safe_repr(values)}: set --config.{where}.{field}=VALUE."
        _refuse(where, rule)
    hints = _hints(cls)
    for name in map(str, values):
        if name not in hints:
            full = f"{where}.{name}".lstrip(".")
            of_kind = f" where {' and '.join(choices)}" if choices else ""
            meant = _meant(full, hints, root)
            for choice, kinds in choices.items():
                having = [other for other, its in kinds.items() if name in _hints(its)]
                if having:
                    meant = f"It is a field of {choice.rpartition('=')[0]}={' and '.join(having)}."
            raise errors.UserError(f"config has no field {full}{of_kind}. {meant}")
    defaults = {f.name: _default(f) for f in dataclasses.fields(cls)}
    typed = {
        n: _typed(value, hints[n], f"{where}.{n}".lstrip("."), root, defaults[n])
        for n, value in values.items()
    }
    return cls(**typed)


def differing(section: Any) -> dict[str, Any]:
    """The opposite of `build`: nested values of a section, where they differ from defaults."""
    hints = _hints(type(section))
    fields = {f.name: (getattr(section, f.name), _default(f)) for f in dataclasses.fields(section)}
    return {n: _values(x, hints[n]) for n, (x, default) in fields.items() if x != default}


def _values(value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is dict:
        item = typing.get_args(hint)[1]
        return {name: _values(x, item) for name, x in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    kinds = {m.by: getattr(value, m.by, None) for m in _markers(hint, ByKind)}
    defaults = {m.by: m.default for m in _markers(hint, ByKind)}
    chosen = {by: kind for by, kind in kinds.items() if kind not in (None, defaults[by])}
    return chosen | differing(value)


def is_default(section: Any, name: str) -> bool:
    """Returns whether a field of a section has its default."""
    fields = {f.name: f for f in dataclasses.fields(section)}
    return bool(getattr(section, name) == _default(fields[name]))


def _default(field: dataclasses.Field[Any]) -> Any:
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


def _meant(full: str, hints: Mapping[str, Any], root: type) -> str:
    """A hint about an unknown field: one of its section, or one of another section."""
    from vit_jax.core import synonyms
    from vit_jax.core.schema import renamed

    if full in renamed.FIELDS:
        return f"It was renamed: give {renamed.FIELDS[full]}."
    section, _, name = full.rpartition(".")
    near = errors.nearest(name, hints)
    others = synonyms.fields_meant(name, leaves(root))
    ours = synonyms.WORDS.get(name.lower(), [])
    is_others = any(name == field.rpartition(".")[2] for field in others) or (
        ours and not set(ours) & set(hints)
    )
    if not others or (near.startswith("Did") and not is_others):
        return near
    meant = " or ".join(map(repr, others[:3]))
    return f"Did you mean {meant}? {section or 'config'} has {', '.join(sorted(hints))}."


def _typed(
    value: Any, hint: Any, where: str, root: type, default: Any = dataclasses.MISSING
) -> Any:
    """`value` as type `hint`, or a UserError that says which values the field takes."""
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where, root)
    for by_values in _markers(hint, ByValues):
        cls = by_values.find(value) if isinstance(value, Mapping) else by_values.whole()
        return build(cls, value, where, root)
    if by_kinds := _markers(hint, ByKind):
        classes: list[type] = []
        choice_kinds: dict[str, Mapping[str, type]] = {}
        for by_kind in by_kinds:
            chosen = value.get(by_kind.by) if isinstance(value, Mapping) else None
            if by_kind.default == ():
                names = _items(chosen, str) if isinstance(chosen, str) else chosen or ()
                classes += [by_kind.find(errors.safe_str(name)) for name in names]
                continue
            kind = by_kind.default if chosen is None else errors.safe_str(chosen)
            classes.append(by_kind.find(kind))
            choice_kinds[f"{where}.{by_kind.by}={kind}"] = by_kind.kinds
        return build(mixed(*classes), value, where, root, choice_kinds)
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            _refuse(where, f"maps names to sections; {where}.NAME=none takes one out.")
        item = typing.get_args(hint)[1]
        there = {str(k): v for k, v in value.items() if not _is_none(v)}  # None removes an item
        return {k: _typed(v, item, f"{where}.{k}", root) for k, v in there.items()}
    options = _options(hint)
    if _is_none(value) and type(None) not in options and "none" not in options:
        cure = "Leave it out for its default." if default is not dataclasses.MISSING else ""
        _refuse(where, f"cannot be None; it takes {_spelled(options)}.", cure)
    # "None" means None rather than a string, unless "none" is one of the choices.
    for option in sorted(options, key=lambda o: (o != "none", o is not type(None))):
        try:
            return _as(value, option)
        except Exception:  # whatever an object of a config file raises
            continue
    wanted = _spelled(options)
    given, choices = errors.safe_str(value), [o for o in options if isinstance(o, str)]
    return _refuse(where, f"takes {wanted}, got {given!r}.", errors.did_you_mean(given, choices))


def _refuse(where: str, rule: str, cure: str = "") -> Any:
    raise errors.UserError(rule, field=f"config.{where}", cure=cure)


def _spelled(options: tuple[Any, ...]) -> str:
    return " or ".join(_SPELLED.get(option, repr(option)) for option in options)


def _hints(cls: type) -> dict[str, Any]:
    """The types of the fields: declared choices as literals, sections by kind as they are."""
    types = typing.get_type_hints(cls, include_extras=True)  # with those of class variables
    hints = {}
    for field in dataclasses.fields(cls):
        hint = types[field.name]
        choices = getattr(field.metadata.get("declared"), "choices", None)
        if choices:
            optional = type(None) in typing.get_args(hint)
            hint = Literal[choices] | None if optional else Literal[choices]
        hints[field.name] = hint
    return hints


def _markers(hint: Any, kind: type[M]) -> list[M]:
    metadata = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
    return [marker for marker in metadata if isinstance(marker, kind)]


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return tuple(o for h in typing.get_args(hint) for o in _options(h))
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return (hint,)


def _as(value: Any, option: Any) -> Any:
    """`value` as one alternative, or ValueError. Text from the command line is parsed."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    read: Any = option
    text = isinstance(value, _Text)
    if typing.get_origin(option) is tuple:
        kind = typing.get_args(option)[0]
        items = _items(value, kind) if text else value
        if not isinstance(items, list | tuple):
            raise ValueError(value)
        return tuple(_as(item, kind) for item in items)
    if option is type(None):
        fits, read = _is_none(value), None
    elif isinstance(option, str):  # one choice of a Literal
        fits = value == option
    elif option is str:
        fits, read = isinstance(value, str), str(value)
        if read == "~" or read.startswith("~/"):  # a path below the home folder, in any field
            read = str(Path(read).expanduser())
    elif option is bool:
        read = {"true": True, "false": False}.get(value.lower()) if text else value
        fits = isinstance(read, bool)
    else:  # int or float; "1_000" is an integer, "1e3" and "1.0" are not
        is_number = isinstance(value, int | option) and not isinstance(value, bool)
        read = option(value)
        fits = (text or is_number) and (option is int or math.isfinite(read))
    if not fits:
        raise ValueError(value)
    return read


def _items(text: str, kind: type) -> Any:
    if kind is not str:
        items = ast.literal_eval(text)
        return items if isinstance(items, list | tuple) else [items]
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        items = None
    items = [items] if isinstance(items, str) else items
    if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        return items
    return [item.strip() for item in text.split(",") if item.strip()]


def says_none(text: str) -> bool:
    """Returns whether text from the command line means None, as people write it."""
    return text.lower() in ("none", "null")


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, _Text) and says_none(value))


_SPELLED = {
    type(None): "None",
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[int, ...]: "whole numbers such as 3,4,6,3",
    tuple[float, ...]: "numbers such as 0.5,0.5,0.5",
    tuple[str, ...]: "strings such as a,b",
}
