"""Checks of the fields that a model's specification has, whatever its family."""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.core import errors
from vit_jax.nn.group_norm import GROUPS
from vit_jax.nn.stack import REMAT_POLICIES

# Fields with a choice of words.
OF_PRECISION: dict[str, tuple[str | None, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "gradient_dtype": (None, "float32", "bfloat16"),
    "remat": tuple(REMAT_POLICIES),
}
OF_RESNETS: dict[str, tuple[str | None, ...]] = {"weight_epsilon_of": ("variance", "deviation")}


def check_types(spec: Any) -> None:
    """UserError for a field of another type than it is declared with, or a number not finite."""
    hints = typing.get_type_hints(type(spec))
    for field in dataclasses.fields(spec):
        value, hint = getattr(spec, field.name), hints[field.name]
        if typing.get_origin(hint) is tuple:
            fits = isinstance(value, tuple | list) and all(map(is_whole, value))
        elif hint is float:
            fits = not isinstance(value, bool) and _is_finite(value)
        elif hint is int:
            fits = is_whole(value)
        else:
            # Words are looked up among their choices, which are told.
            fits = hint is not bool or isinstance(value, bool)
        if not fits:
            kind = getattr(hint, "__name__", str(hint)) if hint is not float else "finite number"
            raise errors.UserError(f"model.{field.name}={value!r}: it must be of type {kind}.")


def is_whole(value: Any) -> bool:
    """Whether it is an integer, Python's or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def check_choices(spec: Any, choices: Mapping[str, tuple[str | None, ...]]) -> None:
    """UserError for a field of `spec` that is none of its choices."""
    for field, words in choices.items():
        value = getattr(spec, field)
        if value not in words:
            raise errors.UserError(
                f"model.{field}={value!r}. {errors.nearest(str(value), filter(None, words))}"
            )


def check_at_least_1(spec: Any, fields: Iterable[str]) -> None:
    """UserError for a field below 1."""
    for field in fields:
        if getattr(spec, field) < 1:
            raise errors.UserError(f"model.{field}={getattr(spec, field)}: give at least 1.")


def check_resnet(spec: Any) -> None:
    """UserError for stages without units, or channels that are no whole groups of a norm."""
    if any(units < 1 for units in spec.units):
        raise errors.UserError(f"model.units={spec.units}: give each stage at least 1.")
    if spec.root_width < 1 or spec.root_width % GROUPS:
        nearest = max(1, round(spec.root_width / GROUPS)) * GROUPS
        raise errors.UserError(
            f"model.root_width={spec.root_width} does not divide into the {GROUPS} groups of a "
            f"group norm; nearest: {nearest}."
        )
    check_choices(spec, OF_RESNETS)
