"""The kinds of errors, the exit status that a command ends with for each, and lists of errors.

Raise `UserError` where someone who knows Python and JAX would not see the reason or the cure: it
states the field, its value, the rule, the nearest valid value. Everything else is said by the
library or the system that noticed it, behind a line of ours that says what was being done
(`reading`, `writing`). Of both a command prints the message alone; --traceback shows all. Any other
exception that escapes a command is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

NOT_GIVEN: Any = ...  # no value, not even None

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
    """The input is wrong (config, data, files, disk).

    The message is `FIELD=VALUE RULE CURE`, of which the call gives what there is.

    Attributes:
      field: what has the value: a field of the config, a flag, a file.
      value: its value; NOT_GIVEN if the field alone says what is meant.
      rule: what it does not fulfil, as a predicate, or the whole message.
      cure: what to change, as a sentence, where the rule does not say it.
    """

    exit_status = EXIT_USER_ERROR

    def __init__(
        self, rule: str, *, field: str | None = None, value: object = NOT_GIVEN, cure: str = ""
    ) -> None:
        self.field, self.value, self.rule, self.cure = field, value, rule, cure
        subject = field if value is NOT_GIVEN else f"{field}={safe_str(value)}"
        super().__init__(" ".join(part for part in (subject, rule, cure) if part))


# Raised by parsers of the standard library and of others for content that they cannot read. A block
# of `reading` holds the call of the parser alone, lest it takes a bug of ours for such content.
_CONTENT_ERRORS = (
    *(OSError, ValueError, EOFError, RecursionError, ImportError, csv.Error, struct.error),
    *(zlib.error, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError),
)
# Libraries with errors of their own, which are not imported for this.
_LIBRARIES = (
    *("pyarrow", "PIL", "safetensors", "tensorflow", "array_record", "google", "requests"),
    *("aiohttp", "gcsfs", "s3fs", "botocore", "zstandard", "wandb", "mlflow"),
)


def is_of_library(error: BaseException) -> bool:
    """Returns whether the system or a library raised it about a file or its content."""
    return isinstance(error, _CONTENT_ERRORS) or type(error).__module__.startswith(_LIBRARIES)


def system_words(error: BaseException, codes: Collection[int] = errno.errorcode) -> str:
    """The system's words that an error has, as "No space left on device", TensorStore's too."""
    number = getattr(error, "errno", None)
    words = ((code, os.strerror(code)) for code in codes)
    return next((said for code, said in words if code == number or said in str(error)), "")


def describe_error(error: BaseException) -> str:
    """The error in its own words, such as `BadZipFile: File is not a zip file`."""
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    return f"{type(error).__name__}: {shorten(' '.join(said.split()))}".removesuffix(": ")


@contextlib.contextmanager
def reading(field: object, path: object = NOT_GIVEN, *, cure: str = "") -> Iterator[None]:
    """Puts what was being read before the words of the system or library that cannot read it.

    UserError: `init.weights=a.npz cannot be read: BadZipFile: File is not a zip file.`
    """
    with _context("cannot be read", field, path, cure):
        yield


@contextlib.contextmanager
def writing(field: object, path: object = NOT_GIVEN, *, cure: str = "") -> Iterator[None]:
    """Does for writing what `reading` does."""
    with _context("cannot be written", field, path, cure):
        yield


@contextlib.contextmanager
def naming(field: str, value: object = NOT_GIVEN) -> Iterator[None]:
    """Puts a field and its value before a UserError's message, which may begin with the value."""
    try:
        yield
    except UserError as error:
        subject = field if value is NOT_GIVEN else f"{field}={value}"
        raise UserError(f"{subject}: {str(error).removeprefix(f'{value}: ')}") from error


@contextlib.contextmanager
def renaming(field: str, given: str) -> Iterator[None]:
    """Puts the field that was given in place of the one that a UserError's message names."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(f"{field}=", f"{given}=")) from error


@contextlib.contextmanager
def _context(predicate: str, field: object, path: object, cure: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not is_of_library(error):
            raise
        rule = f"{predicate}: {describe_error(error).rstrip('.')}."
        raise UserError(rule, field=str(field), value=path, cure=cure) from error


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
    """The end of an error message: the valid names nearest to `word`, and all of them if few.

    Returns e.g. `Did you mean 'decode'? Valid: decode, flip_lr, resize.`
    """
    names = sorted(valid)
    if not names:
        return ""
    shown = names if len(names) <= 40 else [*names[:40], "..."]
    return f"{did_you_mean(word, names)} Valid: {', '.join(shown)}.".lstrip()


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A question such as `Did you mean 'decode'?`; empty if no valid name is near to `word`.

    Case is ignored. A word that other projects use for one of these names
    (core/synonyms.py) is near to that name alone.
    """
    from vit_jax.core.synonyms import NOTES, WORDS

    names = sorted(valid)
    meant = [name for name in WORDS.get(word.lower(), ()) if name in names]
    note = f" ({NOTES[word.lower()]})" if meant and word.lower() in NOTES else ""
    if not meant:
        lower = list(dict.fromkeys(name.lower() for name in names))
        same = [name for name in lower if name == word.lower()]
        close = same or difflib.get_close_matches(word.lower(), lower, n=3, cutoff=0.5)
        meant = [name for c in close for name in names if name.lower() == c][:3]
    return f"Did you mean {' or '.join(map(repr, meant))}?{note}" if meant else ""


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


class Attempt(Protocol):
    """A function that makes a part: `ErrorCollector.attempt`, or `make_or_raise`."""

    def __call__(
        self,
        what: str,
        make: Callable[..., T],
        /,
        *args: Any,
        after: Sequence[Any] = (),
        **kwargs: Any,
    ) -> T:
        """The result of make(*args, **kwargs)."""


def make_or_raise(
    what: str, make: Callable[..., T], /, *args: Any, after: Sequence[Any] = (), **kwargs: Any
) -> T:
    """The result of make(*args, **kwargs); its error is raised at once."""
    del what, after
    return make(*args, **kwargs)


class ErrorCollector:
    """Makes the parts of something and collects the errors, to report all of them at once."""

    def __init__(self) -> None:
        self.found: list[CollectedError] = []

    def attempt(
        self,
        what: str,
        make: Callable[..., T],
        /,
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
