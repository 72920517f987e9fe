"""Names of classes, by their numbers in a config.json."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.core.errors import UserError

_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
_SHOWN = 5  # mistakes in a message


def read(key: str, labels: Mapping[str, Any], num_classes: int) -> tuple[str, ...] | None:
    """Names in order, with `placeholder` for classes without one; None if no class has a name.

    Args:
      key: the key of `labels` in config.json, for messages.
      labels: names by number, as JSON has them: {"0": "cat", "1": "dog"}.
      num_classes: classes of the head; 0 for a model without one, whose names are ignored.

    Raises:
      UserError: keys that are not numbers, or not classes of the head; names that are not words.
    """
    if not num_classes:
        return None
    _check_keys(key, labels, num_classes)
    named = {int(number): name for number, name in labels.items() if name not in (None, "")}
    nonsense = [f"{n}: {str(x)[:40]}" for n, x in named.items() if type(x) not in (str, int, float)]
    if nonsense:
        raise UserError(f"config.json: {key} has names that are not words: {_some(nonsense)}.")
    names = tuple(str(named.get(i, placeholder(i))) for i in range(num_classes))
    return None if len(nameless(names)) == num_classes else names


def placeholder(number: int) -> str:
    """Hugging Face's name for a class without one: "LABEL_3"."""
    return f"LABEL_{number}"


def nameless(names: Sequence[str]) -> list[int]:
    """Numbers of the classes without a name of their own."""
    return [i for i, name in enumerate(names) if name == placeholder(i)]


def agree(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether these are the same classes in the same order, as far as both have names."""
    return len(names) == len(others) and all(
        a == b or placeholder(i) in (a, b)
        for i, (a, b) in enumerate(zip(names, others, strict=True))
    )


def notice(names: Sequence[str]) -> str:
    """A sentence about classes that `read` gave a placeholder; "" if all have names."""
    without = nameless(names)
    if not without:
        return ""
    called = f"{placeholder(without[0])}" + (" and so on" if len(without) > 1 else "")
    return (
        f"{len(names) - len(without):,} of {len(names):,} classes have names; without one are "
        f"{_some(without)}, called {called}."
    )


def _check_keys(key: str, labels: Mapping[str, Any], num_classes: int) -> None:
    words = [number for number in labels if not _NUMBER.fullmatch(number)]
    if words:
        raise UserError(
            f"config.json: {key} has keys that are not numbers of classes: {_some(words)}; it goes "
            'from number to name: {"0": "cat", "1": "dog"}.'
        )
    outside = sorted(int(number) for number in labels if int(number) >= num_classes)
    if outside:
        raise UserError(
            f"config.json: {key} names the classes {_some(outside)}, but the head has "
            f"{num_classes:,}, 0 to {num_classes - 1}."
        )


def _some(items: Sequence[Any]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(str(x)[:40] for x in items[:_SHOWN]) + (f" and {rest:,} more" * (rest > 0))
