"""The tasks of a preparation, and where they run: processes here, or Apache Beam.

The first task reads a part once, checks its images and writes its catalogue; the second writes a
shard of the data set from the locations of its images.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import pyarrow.parquet as pq

from vit_jax.core.errors import UserError, reading
from vit_jax.core.files import atomic_file, write_file
from vit_jax.data.sources import tfds_writer
from vit_jax.tools.prepare import evaluation_sets, image_folder, imagenet, records, tars
from vit_jax.tools.prepare.collection import ImageRow, Part, RowAndBytes, is_text, write_catalogue
from vit_jax.tools.prepare.faults import CONVERT, FAULTS, SET_ASIDE, Policy, check, strictest

FILES = "files"  # of a folder
READERS: dict[str, Callable[[Part], Iterator[RowAndBytes]]] = {
    "tar": tars.images,
    "numbered_tar": imagenet.numbered_images,
    FILES: image_folder.images,
    "webdataset": tars.samples,
    "json_lines": records.json_lines,
    "parquet": records.parquet_rows,
    "tfds": evaluation_sets.examples,
    # Files that a collection passes over, by the fault that says why.
    **dict.fromkeys(FAULTS, image_folder.not_read),
}
LISTS = ("json_lines", "parquet")  # of images in files of their own
# Faults of such files that may be mended while their list stays as it is.
_OF_FILES = frozenset(
    ("missing", "outside", "no_file", "empty", "truncated", "unreadable", "too_large")
)
MOST_OPEN_FILES = 64
MOST_WORKERS = 1024  # processes


Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class PartTask:
    number: int  # from 0
    part: Part
    policy: Policy
    max_pixels: int  # of an image
    folder: str  # for catalogues and copies of images

    @functools.cached_property
    def catalogue(self) -> Path:
        """The file to write; another one if the part's files or the options change."""
        part = self.part
        # A folder's own time does not change when a file in it is replaced.
        paths = [Path(part.path, name) for name in part.files] if part.reader == FILES else ()
        state = []
        for path in paths or [Path(part.path)]:
            with reading(path):
                stat = path.stat()
            state.append((stat.st_size, stat.st_mtime_ns))
        definition = repr((part, state, sorted(self.policy.items()), self.max_pixels))
        digest = hashlib.sha256(definition.encode(errors="surrogateescape")).hexdigest()[:16]
        return Path(self.folder, f"{self.number:06}-{digest}.parquet")

    @property
    def has_catalogue(self) -> bool:
        return self.catalogue.exists()

    def is_read(self) -> bool:
        """Returns whether the catalogue is there, and no file of a list may have been mended."""
        if not self.has_catalogue or self.part.reader not in LISTS:
            return self.has_catalogue
        columns, filters = ["path", "faults"], [("action", "=", SET_ASIDE)]
        rows = pq.read_table(self.catalogue, columns=columns, filters=filters).to_pylist()
        return not any(row["path"] and _OF_FILES.intersection(row["faults"]) for row in rows)


def read_part_or_message(task: PartTask) -> str:
    """`read_part`, with a UserError returned as its message, so that the other parts go on."""
    try:
        read_part(task)
    except UserError as error:
        return str(error)
    return ""


def read_part(task: PartTask) -> None:
    path = task.catalogue
    with ImageCopies(path.with_suffix(".images")) as copies:
        images = READERS[task.part.reader](task.part)
        rows = [_checked(task, row, data, copies) for row, data in images]
    write_catalogue(path, rows)


def _checked(task: PartTask, row: ImageRow, data: bytes | None, copies: ImageCopies) -> ImageRow:
    part, policy = task.part, task.policy
    if not is_text(row.name):  # it cannot be written
        name = row.name.encode("utf-8", "backslashreplace").decode()
        row, data = ImageRow(name, faults=("unsafe_name",)), None
    elif not is_text(row.path):
        row = row.located()
    if row.labels is None:
        labels = part.labels
        of_image = labels.get(row.name, ()) if isinstance(labels, Mapping) else labels
        row = row._replace(labels=of_image)
    row = row._replace(split=part.split)
    if data is None:
        (fault,) = row.faults
        return row._replace(action=policy[fault])
    row, stored = check(row, data, policy, task.max_pixels)
    if not row.labels:
        action = strictest((row.action, policy["no_label"]))
        row = row._replace(faults=(*row.faults, "no_label"), action=action)
    if row.action != SET_ASIDE and (stored is not data or not row.path):
        return row.located(*copies.keep(stored))
    return row if row.path else row._replace(nbytes=len(data))


class ImageCopies(contextlib.ExitStack):
    """A file of images, one behind the other, whose bytes in the collection cannot be stored."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: IO[bytes] | None = None

    def keep(self, data: bytes) -> tuple[str, int, int]:
        """Appends an image; returns its path, offset and size in the finished file."""
        if self._file is None:
            self._file = self.enter_context(self.enter_context(atomic_file(self._path)).open("wb"))
        location = str(self._path), self._file.tell(), len(data)
        self._file.write(data)
        return location


@dataclasses.dataclass(frozen=True)
class ShardTask:
    path: str
    note: str  # path of a file that records that the shard is written, and its contents
    rows: tuple[ImageRow, ...]
    multi_label: bool
    weighted: bool

    @property
    def key(self) -> str:
        """A hash of all inputs; a note with another one does not count."""
        inputs = repr((self.rows, self.multi_label, self.weighted))
        return hashlib.sha256(inputs.encode()).hexdigest()


class WrittenShard(NamedTuple):
    name: str  # of the file
    examples: int
    nbytes: int  # of its records
    digest: str  # of names, labels and images in their order; hexadecimal


def already_written(task: ShardTask) -> WrittenShard | None:
    try:
        note = json.loads(Path(task.note).read_text())
        is_same = os.stat(task.path).st_size == note["file_bytes"] and note["key"] == task.key
        return WrittenShard(**note["done"]) if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_shard(task: ShardTask) -> WrittenShard:
    digest, nbytes = hashlib.sha256(), 0

    def records() -> Iterator[bytes]:
        nonlocal nbytes
        with contextlib.ExitStack() as stack:
            files: dict[str, IO[bytes]] = {}
            for row in task.rows:
                image = _image(row, files, stack)
                labels = row.labels or ()
                digest.update(repr((row.name, labels, row.weights, len(image))).encode())
                digest.update(image)
                record = tfds_writer.example(
                    image,
                    labels,
                    row.name,
                    weights=row.weights,
                    multi_label=task.multi_label,
                    weighted=task.weighted,
                )
                nbytes += len(record)
                yield record

    with atomic_file(Path(task.path)) as temporary:
        tfds_writer.write_records(temporary, records())
        file_bytes = temporary.stat().st_size
    written = WrittenShard(Path(task.path).name, len(task.rows), nbytes, digest.hexdigest())
    note = json.dumps({"key": task.key, "file_bytes": file_bytes, "done": written._asdict()})
    write_file(Path(task.note), note)
    return written


def _image(row: ImageRow, files: dict[str, IO[bytes]], stack: contextlib.ExitStack) -> bytes:
    with reading(row.path):
        if row.path not in files:
            if len(files) >= MOST_OPEN_FILES:
                files.pop(next(iter(files))).close()
            files[row.path] = stack.enter_context(open(row.path, "rb"))  # noqa: SIM115
        files[row.path].seek(row.offset)
        data = files[row.path].read(row.nbytes)
    # The hash of a converted image is that of its original; nobody else changes the copy.
    is_same = row.action == CONVERT or hashlib.sha256(data).digest() == row.sha256
    if len(data) != row.nbytes or not is_same:
        rule = f"has been changed since it was checked: {row.name}."
        cure = "Give another --version, or move what was prepared so far away."
        raise UserError(rule, field=row.path, cure=cure)
    return data


def process_runner(workers: int) -> Callable[..., Iterator[object]]:
    """A function that runs tasks in so many processes and yields results as they come."""

    def run(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        if workers == 1:
            yield from map(function, tasks)
            return
        # Not forked: a copy of a process with threads may deadlock.
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, context, initializer=_end_with_parent
        )
        try:
            yield from _run(pool, function, tasks, ahead=2 * workers)
        except BrokenProcessPool as error:
            rule = "A worker was killed, perhaps because memory ran out."
            raise UserError(
                rule, cure="The same command, with fewer --workers, goes on."
            ) from error
        except (KeyboardInterrupt, GeneratorExit):
            # Unfinished tasks may be killed, since files are written completely or not at all.
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return run


def _run(
    pool: concurrent.futures.Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    ahead: int,
) -> Iterator[Result]:
    """Runs the tasks, at most `ahead` of them in the pool, since they may be large."""
    waiting: set[concurrent.futures.Future[Result]] = set()
    for task in tasks:
        if len(waiting) >= ahead:
            done, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            yield from (future.result() for future in done)
        with _no_interrupts():
            waiting.add(pool.submit(function, task))
    for future in concurrent.futures.as_completed(waiting):
        yield future.result()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Delays Ctrl-C, and keeps it from processes started here: the parent ends its workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Ends this worker with its parent, even if that is killed and cannot tell it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def beam_runner(folder: Path, beam_flags: Sequence[str]) -> Callable[..., Iterator[object]]:
    """Like `process_runner`, on one machine or many.

    Tasks and results are files in `folder`, which no other run uses, so the pipeline carries their
    numbers only. All machines must see the source and the output under the same paths, on a shared
    file system. They also need this package; --beam_flags tells Beam how they get it.
    """
    with reading("--runner", "beam", cure="pip install 'vit-jax-pretraining[beam]'"):
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

    def new_pipeline() -> beam.Pipeline:
        return beam.Pipeline(options=PipelineOptions(list(beam_flags)))

    with _in_words_of_beam(beam_flags):
        new_pipeline()  # an unknown runner is refused before anything is written

    def run(function: Callable[[Any], object], tasks: Iterable[object]) -> Iterator[object]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        number = 0
        for number, task in enumerate(tasks, 1):
            (folder / f"{number}.task").write_bytes(pickle.dumps(task))
        if number:
            with _in_words_of_beam(beam_flags), new_pipeline() as pipeline:
                numbers = pipeline | beam.Create(range(1, number + 1)) | beam.Reshuffle()
                _ = numbers | beam.Map(run_task, function, str(folder))
        for k in range(1, number + 1):
            result = pickle.loads((folder / f"{k}.result").read_bytes())
            if isinstance(result, Exception):
                raise result
            yield result
        shutil.rmtree(folder, ignore_errors=True)

    return run


@contextlib.contextmanager
def _in_words_of_beam(beam_flags: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        rule = f"cannot be run by Apache Beam: {type(error).__name__}: {error}"
        raise UserError(rule, field="--beam_flags", value=",".join(beam_flags)) from error


def run_task(number: int, function: Callable[[Any], object], folder: str) -> None:
    """Runs a task on a worker; its error is a result, too, which no runner repeats or rewords."""
    path = Path(folder, f"{number}.result")
    if path.exists():  # Beam may repeat a finished task
        return
    task = pickle.loads(path.with_suffix(".task").read_bytes())
    try:
        result = function(task)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))  # pickling loses it
        result = error
    with atomic_file(path) as temporary:
        temporary.write_bytes(pickle.dumps(result))
