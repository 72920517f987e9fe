"""All that is wrong at once, instead of the first of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from vit_jax.core.errors import UserError

T = TypeVar("T")

MISSING: Any = object()  # in the place of a part that could not be made


class Problem(NamedTuple):
    """What could not be made, and why."""

    what: str
    error: UserError


class Problems:
    """Makes the parts of something and collects what is wrong with them.

    Attributes:
      found: in the order of looking.
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def look(self, what: str, make: Callable[..., T], *needed: Any) -> T:
        """make(*needed); MISSING if that is a UserError, or if something needed is missing."""
        if any(part is MISSING for part in needed):
            return MISSING
        try:
            return make(*needed)
        except UserError as error:
            # Two parts may stumble over the same field.
            if str(error) not in [str(problem.error) for problem in self.found]:
                self.found.append(Problem(what, error))
            return MISSING

    def tell(self) -> None:
        """Raises the only problem as it is, several as one UserError that lists them."""
        if len(self.found) == 1:
            raise self.found[0].error
        if self.found:
            lines = [
                f"\n  {number}. " + str(problem.error).replace("\n", "\n     ")
                for number, problem in enumerate(self.found, start=1)
            ]
            raise UserError(f"{len(lines)} problems:{''.join(lines)}")
