"""What a list says of an image's classes, as their numbers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import stat
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.prepare.collection import MOST_CLASSES, Request
from vit_jax.prepare.entry import Labels

MOST_BYTES = 256 * 2**20  # of a list of names


class BadLabelError(ValueError):
    """A label or a weight that there cannot be."""


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of a set that was given none by its source.

    The names stay in their file: each of very many tasks has a copy of this.

    Attributes:
      path: of a file with their names; "": they are numbers.
      digest: of this file.
    """

    number: int
    path: str = ""
    digest: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Unique; the index of one is its label. UserError if the file has changed."""
        return tuple(_numbers(self))

    def label(self, value: object) -> int:
        """Of a class's name or number. Raises BadLabelError."""
        if isinstance(value, str) and value in (numbers := _numbers(self)):
            return numbers[value]
        if type(value) is int and 0 <= value < self.number:  # a bool is none
            return value
        raise BadLabelError(value)

    def labels(self, value: object, *, several: bool) -> Labels:
        """Of one value or, where an image has `several`, a list; () of None. BadLabelError."""
        if value is None:
            return ()
        if isinstance(value, list) and (several or len(value) <= 1):
            found = tuple(map(self.label, value))
            if len(set(found)) == len(found):
                return found
            raise BadLabelError(value)
        return (self.label(value),)


def weights(value: object, labels: Labels) -> tuple[float, ...]:
    """One in [0, 1] for each label, or none. Raises BadLabelError."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) != len(labels):
        raise BadLabelError(value)
    for weight in value:
        if type(weight) not in (int, float) or not 0 <= weight <= 1:  # NaN is not either
            raise BadLabelError(weight)
    return tuple(float(weight) for weight in value)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How entries of lists and samples are understood.

    Attributes:
      label_field: of the entry, the class or classes.
      several: whether an image has a list of labels.
      images_root: the folder that paths of images are relative to, and must not leave.
    """

    classes: Classes
    label_field: str
    several: bool
    images_root: str = ""


def classes(request: Request) -> Classes:
    """Of --classes, else as many as --num_classes. UserError."""
    if (request.classes is None) == (request.num_classes is None):
        raise UserError(
            "Give the classes: either --classes, a file with their names, one in a line, or "
            "--num_classes where labels are numbers; not both."
        )
    if request.classes is None:
        number = request.num_classes or 0
        if not 1 <= number <= MOST_CLASSES:
            raise UserError(f"--num_classes={number:,}: from 1 to {MOST_CLASSES:,} are possible.")
        return Classes(number)
    path = Path(request.classes).expanduser().absolute()
    data = _read(path)
    return Classes(len(_names(path, data)), str(path), hashlib.sha256(data).hexdigest())


@functools.lru_cache(maxsize=4)
def _numbers(found: Classes) -> dict[str, int]:
    """Name -> label."""
    if not found.path:
        return {str(number): number for number in range(found.number)}
    data = _read(Path(found.path))
    if hashlib.sha256(data).hexdigest() != found.digest:
        raise UserError(f"--classes={found.path} has changed in the meantime: start again.")
    return _names(Path(found.path), data)


def _read(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise UserError(
                f"--classes={path} is not a file of at most {MOST_BYTES // 2**20:,} MiB: a list of "
                "names, one in a line."
            )
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"--classes={path} cannot be read: {error.strerror}.") from error


def _names(path: Path, data: bytes) -> dict[str, int]:
    """Name -> label, of the lines."""
    try:
        # At ends of lines as TFDS knows them, and not at each separator that Unicode has.
        lines = io.StringIO(data.decode("utf-8-sig"), newline=None)
        names = [line.strip() for line in lines]
    except UnicodeDecodeError as error:
        raise UserError(f"--classes={path} is not UTF-8 text ({error}).") from error
    if not names or not all(names):
        raise UserError(f"--classes={path} has an empty line; each must have a class's name.")
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in numbers:
            raise UserError(
                f"--classes={path}: lines {numbers[name] + 1} and {number + 1} are both {name!r}."
            )
        numbers[name] = number
    return numbers
