"""Makes the parts of something: all of them, to report every error at once, or up to the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from vit_jax.core.errors import UserError

T = TypeVar("T")


class _Missing:
    """A placeholder for a part that could not be made, and for each of its attributes."""

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


MISSING: Any = _Missing()


class Look(Protocol):
    """A function that makes a part: `Problems.look` or `at_once`."""

    def __call__(self, what: str, make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The result of make(*args, **kwargs); `what` is the section that errors name."""
        ...


def at_once(what: str, make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The result of make(*args, **kwargs); the first UserError is raised at once."""
    del what
    return make(*args, **kwargs)


class Problem(NamedTuple):
    """A part that could not be made, and the reason."""

    what: str
    error: UserError


class Problems:
    """Makes parts and collects the errors.

    Attributes:
      found: the errors, in the order in which they were met.
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def look(
        self,
        what: str,
        make: Callable[..., T],
        *args: Any,
        after: Sequence[Any] = (),
        **kwargs: Any,
    ) -> T:
        """The result of make(*args, **kwargs), or MISSING if it raises a UserError.

        MISSING as well, and nothing is called, if an argument or one of `after` is missing.
        """
        if any(part is MISSING for part in (*args, *kwargs.values(), *after)):
            return MISSING
        try:
            return make(*args, **kwargs)
        except UserError as error:
            # Two parts may find the same wrong field.
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
