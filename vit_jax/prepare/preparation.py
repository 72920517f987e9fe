"""From a collection to a data set, in the order in which it happens."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic
from vit_jax.core.formatting import format_bytes, format_count
from vit_jax.core.screen import Screen
from vit_jax.data.order import label_index
from vit_jax.data.sources import tfds_writer
from vit_jax.data.sources.tfds_writer import SplitSize
from vit_jax.prepare import (
    arrangement,
    catalogue,
    evaluations,
    faults,
    parts,
    prepared,
    progress,
    shards,
)
from vit_jax.prepare.arrangement import Arrangement
from vit_jax.prepare.collection import Collection, refuse_names
from vit_jax.prepare.copies.duplicates import NEAR_BITS, Evaluation
from vit_jax.prepare.copies.near import MOST_BITS
from vit_jax.prepare.entry import Part
from vit_jax.prepare.parts import PartTask
from vit_jax.prepare.prepared import Prepared
from vit_jax.prepare.report import reports
from vit_jax.prepare.shards import ShardDone, ShardTask, Stored
from vit_jax.prepare.splits import Splits
from vit_jax.run.environment import versions

WORK = ".preparing"  # in the data set's folder; next to nothing, once that is ready
LOCK, OPTIONS = "lock", "options.json"  # in it
CATALOGUES = "catalogues"  # in it, of parts; in "parts" earlier versions left some without mirrors
VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"  # what TFDS can read
LEAST_SHARD_MIB, MOST_SHARD_MIB = 0.001, 2**20
PACKAGES = ("array_record", "numpy", "pillow", "protobuf", "pyarrow", "tensorflow-datasets")
EVALUATIONS = "evaluations"  # in both: hashes of those that were given


@dataclasses.dataclass(frozen=True)
class Options:
    """What the data set depends on besides the collection.

    Attributes:
      version: of the data set, which ends the path of its folder.
      splits: see splits.Splits; "": the collection's.
      stratify: see arrangement.arrange.
      policy: see faults.policy.
      duplicates, near_duplicates, mirrored_duplicates, near_bits: see arrangement.arrange.
      drop_duplicates_of: evaluation sets, see evaluations.load.
      max_image_pixels: of an image; larger ones are set aside.
      shard_mib: size of a file, about.
    """

    version: str = "1.0.0"
    splits: str = ""
    stratify: bool = False
    policy: tuple[str, ...] = ()
    duplicates: str = "keep"
    near_duplicates: str = "report"
    mirrored_duplicates: str = "report"
    near_bits: int = NEAR_BITS
    drop_duplicates_of: tuple[str, ...] = ()
    max_image_pixels: int = 100_000_000
    shard_mib: float = 256


def prepare(
    collection: Collection,
    output: Path,
    options: Options,
    run: Callable[..., Iterator[Any]],
    screen: Screen,
) -> Prepared:
    """Makes the data set `output`/<name>/<version>, or goes on with it.

    Args:
      run: of workers.py; runs tasks.

    Raises:
      UserError: the collection cannot be read; the folder holds something else; the disk is full.
    """
    _refuse_wrong(options)
    refuse_names(collection.class_names)
    folder = output / collection.name / options.version
    work = folder / WORK
    # Before images are read for hours: what they are to become.
    policy = faults.policy(options.policy, collection.policy)
    splits = Splits.parse(options.splits or collection.splits)
    try:
        work.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(work / LOCK, timeout=0):
            for one in (folder, work, work / CATALOGUES):
                atomic.delete_leftovers(one)
            _same_options(work, options)
            return _prepare(collection, folder, work, options, policy, splits, run, screen)
    except filelock.Timeout as error:
        raise UserError(f"Another preparation is writing to {folder}: wait for it.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"No room is left for {folder}. Make some, then the same command goes on."
            ) from error
        raise UserError(
            f"{folder} cannot be written ({error}); then the same command goes on."
        ) from error


def _refuse_wrong(options: Options) -> None:
    """UserError if a value is not possible; of others arrangement and faults tell."""
    if not re.fullmatch(VERSION, options.version):
        raise UserError(f"--version={options.version}: three numbers, as in 1.0.0.")
    if not LEAST_SHARD_MIB <= options.shard_mib <= MOST_SHARD_MIB:  # NaN is neither
        raise UserError(
            f"--shard_mib={options.shard_mib:g}: from {LEAST_SHARD_MIB:g} to {MOST_SHARD_MIB:,} "
            "are possible; 256 is usual."
        )
    if not 0 <= options.near_bits <= MOST_BITS:
        raise UserError(f"--near_bits={options.near_bits}: from 0 to {MOST_BITS} are possible.")
    if options.max_image_pixels < 1:
        raise UserError(f"--max_image_pixels={options.max_image_pixels}: at least 1.")


def _prepare(
    collection: Collection,
    folder: Path,
    work: Path,
    options: Options,
    policy: faults.Policy,
    splits: Splits,
    run: Callable[..., Iterator[Any]],
    screen: Screen,
) -> Prepared:
    started = time.monotonic()
    tasks = _tasks(collection.parts, work / CATALOGUES, policy, options.max_image_pixels)
    source = hashlib.sha256("\n".join(task.catalogue.name for task in tasks).encode()).hexdigest()
    if said := prepared.about(folder):
        return _ready(folder, work, said, source)
    # What there is; the evaluation sets first, which are small and may be named wrongly.
    known = _evaluations(work, options, run, screen)
    table = _read(tasks, "checking", run, screen)
    # What goes where.
    looked = functools.partial(screen.bar, "looking for duplicates")
    arranged = arrangement.arrange(
        table,
        splits,
        duplicates=options.duplicates,
        near_duplicates=options.near_duplicates,
        mirrored_duplicates=options.mirrored_duplicates,
        near_bits=options.near_bits,
        evaluations=known,
        stratify=options.stratify,
        tell=looked,
    )
    multi_label = collection.multi_label or options.duplicates == "merge"
    files = _shards(table, arranged, collection.name, folder, options.shard_mib)
    # Writes it. Until here other options may be given, and nothing is read again.
    _keep_options(work, options, known)
    every = [shard for of_split in files.values() for shard in of_split]
    weighted = arrangement.weighted(table, arranged)
    written = _write(every, table, arranged, work, multi_label, weighted, run, screen)
    done = {split: [written[str(one.path)] for one in found] for split, found in files.items()}
    found = _with_metadata(
        collection, folder, options.version, table, arranged, done, multi_label, weighted
    )
    # Says what it is; with prepared.json, the last one, it is ready.
    evaluations.save(folder / EVALUATIONS, known)
    about = {
        "source": source,
        "evaluations": {one.name: evaluations.digest(one) for one in known},
        "options": dataclasses.asdict(options),
        "versions": versions(PACKAGES),
        "seconds": round(time.monotonic() - started, 1),
    }
    reports.write(found, collection, policy, about, options.max_image_pixels, screen)
    prepared.write(found, about)
    _remove_leftovers(work)
    return found


def _with_metadata(
    collection: Collection,
    folder: Path,
    version: str,
    table: pa.Table,
    arranged: Arrangement,
    done: Mapping[str, Sequence[ShardDone]],
    multi_label: bool,
    weighted: bool,
) -> Prepared:
    """Writes TFDS's files beside the shards."""
    sizes = {
        split: SplitSize([one.examples for one in found], sum(one.nbytes for one in found))
        for split, found in done.items()
    }
    tfds_writer.write_metadata(
        folder,
        name=collection.name,
        version=version,
        description=collection.description,
        class_names=collection.class_names,
        splits=sizes,
        multi_label=multi_label,
        weighted=weighted,
    )
    for split, rows in arranged.splits.items():
        index = arrangement.label_index_of(table, rows, arranged.labels)
        label_index.write(folder / label_index.file_name(split), index)
    digests = [one.digest for found in done.values() for one in found]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return Prepared(folder, table, arranged, sizes, digest)


def _ready(folder: Path, work: Path, said: Mapping[str, Any], source: str) -> Prepared:
    """The data set that an earlier preparation finished. UserError if it was of other images."""
    if said["source"] != source:
        raise UserError(
            f"{folder} is ready, but the collection has been changed since. Give another "
            f"--version, or delete {folder}."
        )
    _remove_leftovers(work)  # it may have been stopped before that
    return prepared.read(folder)


def _evaluations(
    work: Path, options: Options, run: Callable[..., Iterator[Any]], screen: Screen
) -> list[Evaluation]:
    """UserError if one has been changed since this preparation began."""

    def read(parts: Sequence[Part], name: str) -> pa.Table:
        folder = work / EVALUATIONS / name
        tasks = _tasks(parts, folder, evaluations.POLICY, options.max_image_pixels)
        return _read(tasks, f"hashing {name}", run, screen)

    known = evaluations.load(options.drop_duplicates_of, read)
    now = _digests(known)
    for path, one, other in zip(
        options.drop_duplicates_of, now, _begun(work).get(EVALUATIONS, now), strict=True
    ):
        if one != other:
            raise UserError(
                f"{path} has been changed since {work.parent} was begun. Give another --version, "
                f"or delete {work.parent}."
            )
    return known


def _digests(known: Sequence[Evaluation]) -> list[str]:
    return [evaluations.digest(one) for one in known]


def _remove_leftovers(work: Path) -> None:
    """All but what says that the data set is being written to, and with which options."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OPTIONS):
            path.unlink()


def _same_options(work: Path, options: Options) -> None:
    """UserError if files of the folder were written with other options."""
    now, before = _plain(options), _begun(work)
    differing = [name for name in now if name in before and before[name] != now[name]]
    if differing:
        raise UserError(
            f"{work.parent} was begun with other options: "
            + ", ".join(f"{name} was {before[name]!r}" for name in differing)
            + f". Give the same, another --version, or delete {work.parent}."
        )


def _keep_options(work: Path, options: Options, known: Sequence[Evaluation]) -> None:
    """Says what the files are made with that are now written."""
    document = _plain(options) | {EVALUATIONS: _digests(known)}
    atomic.write_text(work / OPTIONS, json.dumps(document))


def _begun(work: Path) -> dict[str, Any]:
    """What `_keep_options` said; {} before any file was written."""
    path = work / OPTIONS
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Delete {work.parent}.") from error


def _plain(options: Options) -> dict[str, Any]:
    """As JSON gives it back."""
    return json.loads(json.dumps(dataclasses.asdict(options)))


def _tasks(
    parts: Sequence[Part], folder: Path, policy: faults.Policy, max_pixels: int
) -> list[PartTask]:
    folder.mkdir(parents=True, exist_ok=True)
    return [
        PartTask(number, part, policy, max_pixels, str(folder)) for number, part in enumerate(parts)
    ]


def _read(
    tasks: Sequence[PartTask], what: str, run: Callable[..., Iterator[Any]], screen: Screen
) -> pa.Table:
    """Reads the parts that no catalogue is there of."""
    paths = [task.catalogue for task in tasks]
    todo = [task for task, path in zip(tasks, paths, strict=True) if not path.exists()]
    problems: list[str] = []
    bar = _PartsBar(screen, what, len(tasks), len(tasks) - len(todo))
    with progress.watched(Path(tasks[0].folder), bar.show) if todo else contextlib.nullcontext():
        for found in run(parts.run_or_tell, todo):
            if isinstance(found, str):
                problems.append(found)
            bar.add(0 if isinstance(found, str) else found)
    screen.bar(what, len(tasks), len(tasks))
    if problems:
        raise UserError("\n".join(problems))
    return catalogue.read(paths)


class _PartsBar:
    """How many parts are read, with the shares of those that are being read: in percent if few."""

    FEW = 100

    def __init__(self, screen: Screen, what: str, parts: int, done: int) -> None:
        self._screen, self._what, self._parts = screen, what, parts
        self._done, self._images = done, 0
        self._lock = threading.Lock()
        screen.bar(what, 0, max(parts, 1))  # from now on the time counts

    def add(self, images: int) -> None:
        """A part is done, that has so many."""
        with self._lock:
            self._done += 1
            self._images += images
        self.show(progress.Running(0, 0.0))

    def show(self, running: progress.Running) -> None:
        """While such parts are being read."""
        with self._lock:
            total = self._parts if self._parts >= self.FEW else 100
            done = int((self._done + running.parts) / max(self._parts, 1) * total)
            images = f"{self._what}, {format_count(self._images + running.images)} images"
            if 0 < done < total:  # of nothing no time left can be told, and the end is told once
                self._screen.bar(images + (", %" if total != self._parts else ""), done, total)


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A file of the set and the rows of the catalogue that are in it, in order."""

    path: Path
    rows: np.ndarray


def _shards(
    table: pa.Table, arranged: Arrangement, name: str, folder: Path, shard_mib: float
) -> dict[str, list[_Shard]]:
    nbytes = table["nbytes"].to_numpy()
    found: dict[str, list[_Shard]] = {}
    for split, rows in arranged.splits.items():
        ends = arrangement.shard_ends(nbytes[rows], int(shard_mib * 2**20))
        found[split] = [
            _Shard(folder / tfds_writer.file_name(name, split, i, len(ends)), rows[start:end])
            for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        ]
    return found


def _write(
    every: Sequence[_Shard],
    table: pa.Table,
    arranged: Arrangement,
    work: Path,
    multi_label: bool,
    weighted: bool,
    run: Callable[..., Iterator[Any]],
    screen: Screen,
) -> dict[str, ShardDone]:
    """Writes the shards that are not there; what is in each, by its path."""
    found: dict[str, ShardDone] = {}
    nbytes = table["nbytes"].to_numpy()
    needed = sum(int(nbytes[shard.rows].sum()) for shard in every if not shard.path.exists())
    free = shutil.disk_usage(work).free
    if needed > free:
        raise UserError(
            f"{work.parent} needs {format_bytes(needed)} more, and {format_bytes(free)} are free."
        )

    def tasks() -> Iterator[ShardTask]:
        """Made one by one: all of them are as large as the catalogue."""
        for shard in every:
            examples = arrangement.entries(table, shard.rows, arranged)
            note = work / f"{shard.path.name}.json"
            task = ShardTask(
                str(shard.path),
                str(note),
                tuple(Stored(*one) for one in examples),
                multi_label,
                weighted,
            )
            if one := shards.done(task):
                found[task.path] = one
            else:
                yield task

    screen.bar("writing", 0, len(every))
    for path, one in run(shards.run_and_name, tasks()):
        found[path] = one
        screen.bar("writing", len(found), len(every))
    screen.bar("writing", len(every), len(every))
    return found
