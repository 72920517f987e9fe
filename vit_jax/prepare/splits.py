"""What --splits says: names of splits, and how many examples each has."""

from __future__ import annotations

import re

from vit_jax.core.errors import UserError

REST = "rest"
ALL = "all"  # splits of a data set, to TFDS too


class Splits(tuple[tuple[str, int | None], ...]):
    """Names and numbers of examples, None for all that remain: "test=100,train=rest"."""

    @classmethod
    def parse(cls, text: str) -> Splits:
        """Raises UserError."""
        found = [part.partition("=") for part in text.split(",")]
        names = [name for name, _, _ in found]
        if ALL in names:
            raise UserError(f"--splits={text}: {ALL} means all splits, and is no name of one.")
        for name, _, number in found:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not (
                number == REST or re.fullmatch(r"[1-9]\d*", number)
            ):
                raise UserError(
                    f"--splits={text}: {name}={number} is not a name and a number, as in "
                    "test=25600,validation=25600,train=rest."
                )
        if len(set(names)) < len(names) or [n for _, _, n in found].count(REST) != 1:
            raise UserError(f"--splits={text}: each name once, and one of them takes the {REST}.")
        return cls((name, None if number == REST else int(number)) for name, _, number in found)
