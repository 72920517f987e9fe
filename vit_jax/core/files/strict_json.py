"""JSON that a run left on disk, read with distrust: whatever is wrong with it is a ValueError."""

import json
from typing import Any

MAX_DEPTH = 64  # what training writes has less than ten


def parse(data: bytes) -> Any:
    """The value that UTF-8 text says; NaN and infinities, which JSON lacks, as Python has them.

    Raises:
      ValueError: no UTF-8, no JSON, or nested deeper than MAX_DEPTH.
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
