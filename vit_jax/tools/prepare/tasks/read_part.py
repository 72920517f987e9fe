"""The first task: reads a part once, checks its images and writes its catalogue."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.tools.prepare import catalogue, evaluation_sets
from vit_jax.tools.prepare.catalogue import ImageRow, Location, RowAndBytes
from vit_jax.tools.prepare.check_image import check, strictest
from vit_jax.tools.prepare.collection import Part, is_text
from vit_jax.tools.prepare.faults import FAULTS, SET_ASIDE, Policy
from vit_jax.tools.prepare.readers import image_folder, imagenet2012, records, tars, webdataset
from vit_jax.tools.prepare.tasks import progress

FILES = "files"  # of a folder
READERS: dict[str, Callable[[Part], Iterator[RowAndBytes]]] = {
    "tar": tars.images,
    "numbered_tar": imagenet2012.numbered_images,
    FILES: image_folder.images,
    "webdataset": webdataset.images,
    "json_lines": records.json_lines,
    "parquet": records.parquet_rows,
    "tfds": evaluation_sets.examples,
    # Files that a collection passes over, by the fault that says why.
    **dict.fromkeys(FAULTS, image_folder.not_read),
}


@dataclasses.dataclass(frozen=True)
class PartTask:
    """A part to read."""

    number: int  # from 0
    part: Part
    policy: Policy
    max_pixels: int  # of an image
    folder: str  # for catalogues and copies of images

    @functools.cached_property
    def catalogue(self) -> Path:
        """The file to write; another one if the part's files or the options change.

        UserError if the part does not exist any more.
        """
        part = self.part
        # A folder's own time does not change when a file in it is replaced.
        paths = [Path(part.path, name) for name in part.files] if part.reader == FILES else ()
        state = []
        for path in paths or [Path(part.path)]:
            try:
                stat = path.stat()
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}.") from error
            state.append((stat.st_size, stat.st_mtime_ns))
        definition = repr((part, state, sorted(self.policy.items()), self.max_pixels))
        digest = hashlib.sha256(definition.encode(errors="surrogateescape")).hexdigest()[:16]
        return Path(self.folder, f"{self.number:06}-{digest}.parquet")


def run_or_message(task: PartTask) -> int | str:
    """`run`, with a UserError returned as its message, so that the other parts go on."""
    try:
        return run(task)
    except UserError as error:
        return str(error)


def run(task: PartTask) -> int:
    """Writes the part's catalogue; returns the number of its images.

    UserError if the part as a whole cannot be read.
    """
    path = task.catalogue
    with ImageCopies(path.with_suffix(".images")) as copies:
        images = map(_as_text, READERS[task.part.reader](task.part))
        watched = progress.reported(images, task.part, path.with_suffix(progress.SUFFIX))
        rows = [_checked(task, row, data, copies) for row, data in watched]
    catalogue.write(path, rows)
    return len(rows)


def _as_text(image: RowAndBytes) -> RowAndBytes:
    """Sets aside a name that cannot be written as text; drops a location that cannot."""
    row, data = image
    if not is_text(row.name):
        name = row.name.encode("utf-8", "backslashreplace").decode()
        return ImageRow(name, faults=("unsafe_name",)), None
    return (row, data) if is_text(row.path) else (row.located(Location()), data)


def _checked(task: PartTask, row: ImageRow, data: bytes | None, copies: ImageCopies) -> ImageRow:
    part, policy = task.part, task.policy
    if row.labels is None:
        labels = part.labels
        own = labels.get(row.name, ()) if isinstance(labels, Mapping) else labels
        row = row._replace(labels=own)
    row = row._replace(split=part.split)
    if data is None:
        (fault,) = row.faults
        return row._replace(action=policy[fault])
    row, stored = check(row, data, policy, task.max_pixels)
    if not row.labels:
        action = strictest((row.action, policy["no_label"]))
        row = row._replace(faults=(*row.faults, "no_label"), action=action)
    if row.action != SET_ASIDE and (stored is not data or not row.path):
        return row.located(copies.keep(stored))
    return row if row.path else row._replace(nbytes=len(data))


class ImageCopies(contextlib.ExitStack):
    """A file of images, one behind the other, whose bytes in the collection cannot be stored."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: IO[bytes] | None = None

    def keep(self, data: bytes) -> Location:
        """Appends an image; returns its location in the finished file."""
        if self._file is None:
            temporary = self.enter_context(atomic_file(self._path))
            self._file = self.enter_context(temporary.open("wb"))
        location = Location(str(self._path), self._file.tell(), len(data))
        self._file.write(data)
        return location
