"""The numbers of several models side by side."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax.core.files import write_text
from vit_jax.core.screen import aligned
from vit_jax.core.tables import csv_text

LESS = ("loss", "ece", "nll", "brier")  # endings of numbers that had better be small
Results = Mapping[str, Mapping[str, float]]  # numbers by name, by model


def numbers(results: Results) -> list[str]:
    """The names of all numbers, in order of first appearance."""
    return list(dict.fromkeys(name for row in results.values() for name in row))


def table(results: Results) -> list[str]:
    """Lines for people: a row for each number that any model has, a column for each model."""
    names = [name for name in numbers(results) if not name.endswith(("examples", "_images"))]
    rows = [[name, *(shown(name, row.get(name)) for row in results.values())] for name in names]
    return aligned(["", *results], rows, left={0})


def write_csv(path: epath.Path, results: Results) -> None:
    """A row for each model, with every digit; an empty cell for a number that it has not."""
    names = numbers(results)
    rows = [[model, *(row.get(name, "") for name in names)] for model, row in results.items()]
    write_text(path, csv_text([["checkpoint", *names], *rows]))


def as_json(results: Any) -> str:
    """One line; null for a number that is not finite, which JSON lacks."""
    return json.dumps(_finite(results), allow_nan=False)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _finite(value) for name, value in x.items()}
    return x if math.isfinite(x) else None


def best(name: str, values: Sequence[float | None]) -> float | None:
    """The best of several models' numbers; None where there is nothing to choose from."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    number = name.partition("/")[2]
    better = max if number.endswith("accuracy") else min if number.endswith(LESS) else None
    return better(there) if better and len(set(there)) > 1 else None


def shown(name: str, value: float | None) -> str:
    """A number for people: 98.06%, 0.09995."""
    if value is None:
        return "-"
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4g}"
