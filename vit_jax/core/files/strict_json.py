"""Strict parsing of JSON that a run left on disk: any fault in it is a ValueError."""

import json
from typing import Any

MAX_DEPTH = 64  # training writes fewer than ten levels


def parse(data: bytes) -> Any:
    """The value of UTF-8 text; NaN and infinities, which JSON lacks, are read as in Python.

    Raises:
      ValueError: not UTF-8, not JSON, or nested deeper than MAX_DEPTH.
    """
    try:
        found = json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _is_deeper(found, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return found


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(x, levels - 1) for x in inside)
