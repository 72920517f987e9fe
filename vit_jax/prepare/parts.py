"""The first task: reads a part once, checks its images, keeps what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from vit_jax.core.errors import UserError
from vit_jax.core.files.atomic import atomic_file
from vit_jax.prepare import catalogue, evaluations, progress
from vit_jax.prepare.catalogue import Row
from vit_jax.prepare.checking import check, strictest
from vit_jax.prepare.entry import Labels, Member, Part, Place, is_text
from vit_jax.prepare.faults import SET_ASIDE, Policy
from vit_jax.prepare.readers import folders, imagenet_v2, records, tars, webdataset

FILES = "files"  # of a folder
READERS: dict[str, Callable[[Part], Iterator[Member]]] = {
    "tar": tars.members,
    "numbered_tar": imagenet_v2.members,
    FILES: folders.members,
    "webdataset": webdataset.members,
    "json_lines": records.json_lines,
    "parquet": records.parquet_rows,
    "tfds": evaluations.examples,
}


@dataclasses.dataclass(frozen=True)
class PartTask:
    """What a worker needs for it.

    Attributes:
      number: of the part, from 0 on.
      folder: where the catalogues, and copies of images, are kept.
      max_pixels: of an image.
    """

    number: int
    part: Part
    policy: Policy
    max_pixels: int
    folder: str

    @functools.cached_property
    def catalogue(self) -> Path:
        """The file with what was found; other files in the part's place, or options, have another.

        Raises:
          UserError: there is no such part any more.
        """
        part = self.part
        # A folder stays as it is when a file in it is replaced.
        paths = [Path(part.path, name) for name in part.files] if part.reader == FILES else ()
        stats = [_stat(path) for path in paths or [Path(part.path)]]
        state = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
        definition = repr((part, state, sorted(self.policy.items()), self.max_pixels))
        digest = hashlib.sha256(definition.encode(errors="surrogateescape")).hexdigest()[:16]
        return Path(self.folder, f"{self.number:06}-{digest}.parquet")


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def run_or_tell(task: PartTask) -> int | str:
    """As `run`, but returns what it would raise: the other parts go on."""
    try:
        return run(task)
    except UserError as error:
        return str(error)


def run(task: PartTask) -> int:
    """Writes the part's catalogue; how many images it has.

    UserError if the part as a whole cannot be read.
    """
    path = task.catalogue
    with Copies(path.with_suffix(".images")) as copies:
        found = map(_with_text, READERS[task.part.reader](task.part))
        members = progress.noted(found, task.part, path.with_suffix(progress.SUFFIX))
        rows = [_row(task, member, copies) for member in members]
    catalogue.write(path, rows)
    return len(rows)


def _row(task: PartTask, member: Member, copies: Copies) -> Row:
    part, name = task.part, member.name
    labels = _labels(part, member)
    if member.data is None:
        row = _unread(member, labels, member.place or Place("", 0, 0))
        return row._replace(action=task.policy[member.fault], split=part.split)
    found = check(member.data, name, task.policy, task.max_pixels)
    faults = found.faults if labels else (*found.faults, "no_label")
    action = strictest((found.action, *(task.policy[fault] for fault in faults)))
    place = member.place
    if action != SET_ASIDE and (found.converted or place is None):
        place = copies.keep(found.converted or member.data)
    return Row(
        name=name,
        order=catalogue.order(name),
        split=part.split,
        labels=labels,
        weights=member.weights,
        path=place.path if place else "",
        offset=place.offset if place else 0,
        nbytes=place.nbytes if place else len(member.data),
        faults=faults,
        action=action,
        height=found.height,
        width=found.width,
        format=found.format,
        sha256=found.sha256,
        look=found.look,
        mirrored=found.mirrored,
    )


def _with_text(member: Member) -> Member:
    """Sets aside what has a name that cannot be written as text; its place may be anywhere."""
    if is_text(member.name):
        if member.place and not is_text(member.place.path):
            return member._replace(place=None)  # a copy is kept, whose place can be written
        return member
    name = member.name.encode("utf-8", "backslashreplace").decode()
    return Member(name, None, None, fault="unsafe_name")


def _unread(member: Member, labels: Labels, place: Place) -> Row:
    return Row(
        name=member.name,
        order=catalogue.order(member.name),
        split=None,
        labels=labels,
        weights=(),
        path=place.path,
        offset=place.offset,
        nbytes=place.nbytes,
        faults=(member.fault,),
        action=SET_ASIDE,
        height=0,
        width=0,
        format="",
        sha256=bytes(32),
        look=None,
        mirrored=None,
    )


def _labels(part: Part, member: Member) -> Labels:
    if member.labels is not None:
        return member.labels
    if isinstance(part.labels, Mapping):
        return part.labels.get(member.name, ())
    return part.labels


class Copies(contextlib.ExitStack):
    """Images that are not stored as they lie in the collection, one behind the other in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: IO[bytes] | None = None

    def keep(self, data: bytes) -> Place:
        """Where it will lie."""
        if self._file is None:
            temporary = self.enter_context(atomic_file(self._path))
            self._file = self.enter_context(temporary.open("wb"))
        place = Place(str(self._path), self._file.tell(), len(data))
        self._file.write(data)
        return place
