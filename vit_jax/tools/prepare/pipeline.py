"""Makes a data set of a collection, in the order of the steps."""

import dataclasses
import errno
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError
from vit_jax.core.files import delete_leftovers, write_file
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.data import label_index
from vit_jax.data.sources import tfds_writer
from vit_jax.data.sources.tfds_writer import SplitSize
from vit_jax.run.environment import versions
from vit_jax.store import workdir
from vit_jax.tools.prepare import (
    evaluation_sets,
    faults,
    prepared_set,
    report_files,
    split_assignment,
    tasks,
)
from vit_jax.tools.prepare.collection import (
    Collection,
    Part,
    PrepareOptions,
    check_class_names,
    read_catalogues,
)
from vit_jax.tools.prepare.duplicates import EvaluationSet
from vit_jax.tools.prepare.prepared_set import PreparedSet, WrittenSet
from vit_jax.tools.prepare.split_assignment import SplitAssignment, Splits, assign_splits
from vit_jax.tools.prepare.tasks import PartTask, ShardTask, WrittenShard

PACKAGES = ("array_record", "numpy", "pillow", "protobuf", "pyarrow", "tensorflow-datasets")
# In the folder of the data set; once that is ready, only the lock and the options remain in it.
WORK_DIR = ".preparing"
_LOCK, _OPTIONS = "lock", "options.json"
# Of parts; earlier versions left some without mirrors in "parts", and with the hashes of clipped
# images of 16 bits in "catalogues".
_CATALOGUES = "checked"
_EVALUATIONS = "evaluations"  # hashes of evaluation sets
RunTasks = Callable[..., Iterator[Any]]  # see tasks.process_runner


def prepare(
    collection: Collection, output: Path, options: PrepareOptions, run: RunTasks, screen: Screen
) -> PreparedSet:
    """Makes the data set `output`/<name>/<version>, or continues an interrupted preparation.

    UserError if the collection cannot be read, the folder holds something else, the disk is full.
    """
    check_class_names(collection.class_names)
    # Parsed before images are read for hours.
    policy = faults.policy(options.policy, collection.policy)
    splits = Splits.parse(options.splits or collection.splits)
    if split_assignment.ALL in {part.split for part in collection.parts}:
        raise UserError(
            f"The collection has a split {split_assignment.ALL!r}, which means all splits of a "
            "data set: rename its folder, or what --source or the table calls it."
        )
    folder = output / collection.name / options.version
    work = folder / WORK_DIR
    try:
        work.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(work / _LOCK, timeout=0):
            for path in (folder, work, work / _CATALOGUES):
                delete_leftovers(path)
            _refuse_other_options(work, options)
            preparation = _Preparation(collection, options, policy, splits, folder, run, screen)
            return preparation.data_set()
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


@dataclasses.dataclass(frozen=True)
class _Preparation:
    """The steps of `prepare`, with the arguments that they share."""

    collection: Collection
    options: PrepareOptions
    policy: faults.Policy
    splits: Splits
    folder: Path
    run: RunTasks
    screen: Screen

    @property
    def work(self) -> Path:
        return self.folder / WORK_DIR

    def data_set(self) -> PreparedSet:
        """Reads, assigns and writes, unless it is ready. UserError if it is of other images."""
        started = time.monotonic()
        of_parts = self._tasks(self.collection.parts, self.work / _CATALOGUES, self.policy)
        # What is passed over may change: a system puts its files everywhere.
        read = [task for task in of_parts if task.part.reader not in faults.FAULTS]
        names = "\n".join(task.catalogue.name for task in read)
        source = hashlib.sha256(names.encode()).hexdigest()
        if note := prepared_set.read_note(self.folder):
            if note["source"] != source:
                raise UserError(
                    f"{self.folder} is ready, but the collection has been changed since. Give "
                    f"another --version, or delete {self.folder}."
                )
            _clear(self.work)  # which may have been interrupted
            return prepared_set.read(self.folder)
        # Evaluation sets first: they are small, and their paths may be wrong.
        evaluations, digests = self._evaluations()
        table = self._read(of_parts, "checking")
        progress = functools.partial(self.screen.bar, "looking for duplicates")
        assignment = assign_splits(table, self.splits, self.options, evaluations, progress)
        # Until here the options may still change, and nothing is read again.
        begun = dataclasses.asdict(self.options) | {_EVALUATIONS: digests}
        write_file(self.work / _OPTIONS, json.dumps(begun))
        data_set = self._write(table, assignment)
        evaluation_sets.save(self.folder / _EVALUATIONS, evaluations)
        note = {
            "source": source,
            "evaluations": {
                one.name: digest for one, digest in zip(evaluations, digests, strict=True)
            },
            "options": dataclasses.asdict(self.options),
            "versions": versions(PACKAGES),
            "seconds": round(time.monotonic() - started, 1),
        }
        report_files.write(
            data_set, self.collection, self.policy, note, self.options.max_image_pixels, self.screen
        )
        prepared_set.write(data_set, note)  # the last file: from now on the data set is ready
        _clear(self.work)
        return data_set

    def _evaluations(self) -> tuple[list[EvaluationSet], list[str]]:
        """Evaluation sets and their digests. UserError if one changed during the preparation."""

        def read(parts: Sequence[Part], name: str) -> pa.Table:
            folder = self.work / _EVALUATIONS / name
            return self._read(self._tasks(parts, folder, evaluation_sets.POLICY), f"hashing {name}")

        paths = self.options.drop_duplicates_of
        evaluations = evaluation_sets.load(paths, read)
        digests = [evaluation_sets.digest(one) for one in evaluations]
        before = _begun(self.work).get(_EVALUATIONS, digests)
        for path, now, then in zip(paths, digests, before, strict=True):
            if now != then:
                raise UserError(
                    f"{path} has been changed since {self.folder} was begun. Give another "
                    f"--version, or delete {self.folder}."
                )
        return evaluations, digests

    def _tasks(self, parts: Sequence[Part], folder: Path, policy: faults.Policy) -> list[PartTask]:
        folder.mkdir(parents=True, exist_ok=True)
        pixels = self.options.max_image_pixels
        return [PartTask(k, part, policy, pixels, str(folder)) for k, part in enumerate(parts)]

    def _read(self, of_parts: Sequence[PartTask], title: str) -> pa.Table:
        """The catalogue of all parts; reads those that have none yet, or one that may be old."""
        todo = [task for task in of_parts if not task.is_read()]
        problems: list[str] = []
        folder, done = Path(of_parts[0].folder), len(of_parts) - len(todo)
        with tasks.PartsBar(self.screen, title, folder, len(of_parts), done) as bar:
            for result in self.run(tasks.read_part_or_message, todo):
                if isinstance(result, str):
                    problems.append(result)
                bar.add(0 if isinstance(result, str) else result)
        if problems:
            raise UserError("\n".join(problems))
        return read_catalogues([task.catalogue for task in of_parts])

    def _write(self, table: pa.Table, assignment: SplitAssignment) -> WrittenSet:
        """Writes the missing shards, and TFDS's files beside them; deletes other shards."""
        nbytes = table["nbytes"].to_numpy()
        multi_label = self.collection.multi_label or self.options.duplicates == "merge"
        weighted = split_assignment.weighted(table, assignment)
        rows_of: dict[str, np.ndarray] = {}  # name of a shard -> rows of its examples, in order
        shards_of: dict[str, list[str]] = {}  # split -> names of its shards
        for split, rows in assignment.splits.items():
            ends = split_assignment.shard_ends(nbytes[rows], int(self.options.shard_mib * 2**20))
            shards_of[split] = [
                tfds_writer.file_name(self.collection.name, split, i, len(ends))
                for i in range(len(ends))
            ]
            rows_of |= zip(shards_of[split], np.split(rows, ends[:-1]), strict=True)
        self._delete_others({*rows_of, *map(label_index.file_name, shards_of)})
        missing = [rows for name, rows in rows_of.items() if not (self.folder / name).exists()]
        needed = sum(int(nbytes[rows].sum()) for rows in missing)
        free = shutil.disk_usage(self.work).free
        if needed > free:
            sizes = f"{format_bytes(needed)} more, and {format_bytes(free)} are free"
            raise UserError(f"{self.folder} needs {sizes}.")
        written: dict[str, WrittenShard] = {}

        def todo() -> Iterator[ShardTask]:
            """Made one by one: together they are as large as the catalogue."""
            for name, rows in rows_of.items():
                images = split_assignment.example_rows(table, rows, assignment)
                path, note = str(self.folder / name), str(self.work / f"{name}.json")
                task = ShardTask(path, note, tuple(images), multi_label, weighted)
                if earlier := tasks.already_written(task):
                    written[name] = earlier
                else:
                    yield task

        self.screen.bar("writing", 0, len(rows_of))
        for shard in self.run(tasks.write_shard, todo()):
            written[shard.name] = shard
            self.screen.bar("writing", len(written), len(rows_of))
        self.screen.bar("writing", len(rows_of), len(rows_of))
        sizes_of = {}
        for split, names in shards_of.items():
            shards = [written[name] for name in names]
            sizes_of[split] = SplitSize([s.examples for s in shards], sum(s.nbytes for s in shards))
        tfds_writer.write_metadata(
            self.folder,
            name=self.collection.name,
            version=self.options.version,
            description=self.collection.description,
            class_names=self.collection.class_names,
            splits=sizes_of,
            multi_label=multi_label,
            weighted=weighted,
        )
        for split, rows in assignment.splits.items():
            index = split_assignment.label_index_of(table, rows, assignment.labels)
            label_index.write(self.folder / label_index.file_name(split), index)
        digests = "\n".join(written[name].digest for name in rows_of)
        digest = hashlib.sha256(digests.encode()).hexdigest()
        return WrittenSet(self.folder, sizes_of, digest, table, assignment)

    def _delete_others(self, names: set[str]) -> None:
        """Deletes shards and labels that an interrupted preparation of other images wrote."""
        shards = f"{self.collection.name}-*.{tfds_writer.FORMAT}-*"
        for pattern in (shards, label_index.file_name("*")):
            for path in self.folder.glob(pattern):
                if path.name not in names:
                    path.unlink()


def _refuse_other_options(work: Path, options: PrepareOptions) -> None:
    before = _begun(work)
    now = json.loads(json.dumps(dataclasses.asdict(options)))
    differing = [name for name in now if name in before and before[name] != now[name]]
    if differing:
        raise UserError(
            f"{work.parent} was begun with other options: "
            + ", ".join(f"{name} was {before[name]!r}" for name in differing)
            + f". Give the same, another --version, or delete {work.parent}."
        )


def _begun(work: Path) -> dict[str, Any]:
    """Options and digests of evaluation sets, once files are written with them; {} before."""
    return workdir.read_json(work / _OPTIONS, dict, f"Delete {work.parent}.") or {}


def _clear(work: Path) -> None:
    """Deletes everything but the lock and the options."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (_LOCK, _OPTIONS):
            path.unlink()
