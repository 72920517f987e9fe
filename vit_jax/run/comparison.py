"""The numbers of several models side by side."""

import csv
import io
from collections.abc import Mapping

from etils import epath

from vit_jax.core.files import write_text
from vit_jax.core.screen import aligned

Results = Mapping[str, Mapping[str, float]]  # numbers by name, by model


def numbers(results: Results) -> list[str]:
    """The names of all numbers, in order of first appearance."""
    return list(dict.fromkeys(name for row in results.values() for name in row))


def table(results: Results) -> list[str]:
    """Lines for people: a row for each model, a column for each number that any of them has."""
    names = [name for name in numbers(results) if not name.endswith(("examples", "_images"))]
    rows = [
        [model, *(_shown(name, row.get(name)) for name in names)] for model, row in results.items()
    ]
    return aligned(["", *names], rows, left={0})


def write_csv(path: epath.Path, results: Results) -> None:
    """A row for each model, with every digit; an empty cell for a number that it has not."""
    names, file = numbers(results), io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["checkpoint", *names])
    for model, row in results.items():
        writer.writerow([model, *(row.get(name, "") for name in names)])
    write_text(path, file.getvalue())


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4g}"
