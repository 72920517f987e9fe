"""Tables in CSV, which people open in spreadsheets."""

import csv
import io
from collections.abc import Iterable
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
