"""Results in files: tables in CSV, which people open in spreadsheets, and values for JSON."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

# A spreadsheet takes a cell that begins so for a formula, and runs it (OWASP, CSV Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text(value: Any) -> Any:
    """A cell that spreadsheets take as text: words of others get an apostrophe, numbers stay."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([as_text(value) for value in row] for row in rows)
    return text.getvalue()


def for_json(value: Any) -> Any:
    """NamedTuples as dictionaries, arrays as lists, numbers that are not finite as None."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: for_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
