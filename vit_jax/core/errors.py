"""The kinds of errors, the exit status that a command ends with for each, and lists of errors.

Raise `UserError` for anything a user can fix: only its message is printed, so it states the rule,
the value, the nearest valid value and the field to change. Any other exception that escapes a
command is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from vit_jax.core.synonyms import NOTES, WORDS

T = TypeVar("T")

EXIT_OK = 0
EXIT_USER_ERROR = 1
EXIT_INTERNAL = 2
EXIT_PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h: start the same command again.
EXIT_PEER_LOST = 76  # start it again on every host


class UserFacingError(Exception):
    """An error whose message says all: a notebook shows that alone, as the commands do."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UserError(UserFacingError, ValueError):
    """The input is wrong (config, data, files, disk); the message says what to change."""

    exit_status = EXIT_USER_ERROR


@contextlib.contextmanager
def explain_unreadable(path: object) -> Iterator[None]:
    """Raises UserError if the operating system cannot read the path."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


class UnknownSplit(UserError):
    """The data have no split of this name."""


class NonFiniteError(UserFacingError, ArithmeticError):
    """A loss or a gradient is NaN or infinite; nothing was updated by that step."""

    exit_status = EXIT_INTERNAL


class Preempted(UserFacingError):
    """Training was asked to stop and has saved its state."""

    exit_status = EXIT_PREEMPTED


class PeerLost(Exception):
    """Another process of the run did not start, has ended, or sends no heartbeat."""

    exit_status = EXIT_PEER_LOST


MAX_SHOWN = 300  # characters of a value in a message


def shorten(text: str) -> str:
    """Cuts text for a message to MAX_SHOWN characters, and escapes what cannot be printed."""
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def safe_str(value: object) -> str:
    """`str` of a value for a message, whatever the value does when it is asked."""
    try:
        return shorten(str(value))
    except Exception:  # a number of more digits than Python prints; an object of a config file
        return f"a value of type {type(value).__name__} that cannot be shown"


def safe_repr(value: object) -> str:
    """`repr` of a value for a message, as `safe_str` is its `str`."""
    try:
        return shorten(repr(value))
    except Exception:
        return safe_str(value)


def nearest_multiple(value: int, of: int) -> int:
    """The multiple of `of`, at least `of` itself, that is nearest to a value."""
    return max(1, round(value / of)) * of


def nearest(word: str, valid: Iterable[str]) -> str:
    """The end of an error message: the valid names nearest to `word`, or all of them if few.

    Case is ignored. A word that other projects use for one of these names
    (core/synonyms.py) is near to that name alone.

    Returns e.g. `Did you mean "decode"? Valid: decode, flip_lr, resize.`
    """
    names = sorted(valid)
    if not names:
        return ""
    meant = [name for name in WORDS.get(word.lower(), ()) if name in names]
    note = f" ({NOTES[word.lower()]})" if meant and word.lower() in NOTES else ""
    if not meant:
        lower = list(dict.fromkeys(name.lower() for name in names))
        same = [name for name in lower if name == word.lower()]
        close = same or difflib.get_close_matches(word.lower(), lower, n=3, cutoff=0.5)
        meant = [name for c in close for name in names if name.lower() == c][:3]
    hint = f"Did you mean {' or '.join(map(repr, meant))}?{note} "
    shown = names if len(names) <= 40 else [*names[:40], "..."]
    return f"{hint if meant else ''}Valid: {', '.join(shown)}."


class _NotMade:
    """Stands for a part that could not be made: it may be handed over, but not read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"reads {name} of a part that could not be made")


NOT_MADE: Any = _NotMade()


class CollectedError(NamedTuple):
    """A part that could not be made, and the reason."""

    what: str
    error: UserError


class ErrorCollector:
    """Makes the parts of something and collects the errors, to report all of them at once.

    Attributes:
      found: in the order in which they were met.
    """

    def __init__(self) -> None:
        self.found: list[CollectedError] = []

    def attempt(
        self,
        what: str,
        make: Callable[..., T],
        *args: Any,
        after: Sequence[Any] = (),
        **kwargs: Any,
    ) -> T:
        """The result of make(*args, **kwargs), or NOT_MADE if it raises a UserError.

        NOT_MADE as well, and nothing is called, if an argument or one of `after` is.
        """
        if any(part is NOT_MADE for part in (*args, *kwargs.values(), *after)):
            return NOT_MADE
        try:
            return make(*args, **kwargs)
        except UserError as error:
            # Two parts may find the same wrong field.
            if str(error) not in [str(each.error) for each in self.found]:
                self.found.append(CollectedError(what, error))
            return NOT_MADE

    def raise_all(self) -> None:
        """Raises the only error as it is, several as one UserError that lists them."""
        if len(self.found) == 1:
            raise self.found[0].error
        if self.found:
            lines = [
                f"\n  {number}. " + str(each.error).replace("\n", "\n     ")
                for number, each in enumerate(self.found, start=1)
            ]
            raise UserError(f"{len(lines)} problems:{''.join(lines)}")
