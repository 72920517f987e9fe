"""Makes a data set of a collection, in the order of the steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import filelock
import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError, describe_error, reading
from vit_jax.core.files import delete_leftovers, write_file
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.data import label_index
from vit_jax.data.sources import tfds_writer
from vit_jax.data.sources.tfds_writer import SplitSize
from vit_jax.run.environment import versions
from vit_jax.store import workdir
from vit_jax.tools.prepare import collection as collections
from vit_jax.tools.prepare import (
    evaluation_sets,
    faults,
    prepared_set,
    report_files,
    split_assignment,
    tasks,
)
from vit_jax.tools.prepare.collection import Collection, Part, PrepareOptions, read_catalogues
from vit_jax.tools.prepare.duplicates import EvaluationSet
from vit_jax.tools.prepare.prepared_set import PreparedSet, WrittenSet
from vit_jax.tools.prepare.split_assignment import (
    SplitAssignment,
    Splits,
    assign_splits,
    named_splits,
)
from vit_jax.tools.prepare.tasks import PartTask, ShardTask, WrittenShard

PACKAGES = ("array_record", "numpy", "pillow", "protobuf", "pyarrow", "tensorflow-datasets")
# In the folder of the data set; once that is ready, only the lock and the options remain in it.
WORK_DIR = ".preparing"
_LOCK, _OPTIONS = "lock", "options.json"
_SHARED = "parts.json"  # how many machines share the work, and on what
# Of parts; earlier versions left some without mirrors in "parts", and with the hashes of clipped
# images of 16 bits in "catalogues".
_CATALOGUES = "checked"
_EVALUATIONS = "evaluations"  # hashes of evaluation sets
RunTasks = Callable[..., Iterator[Any]]  # see tasks.process_runner


class Share(NamedTuple):
    """One machine's tasks, of several that share a folder: all that are `number` modulo `of`.

    Machines only see each other's finished files. All images must have been checked before the
    first shard is written, so each machine starts twice: it does what can be done, and ends.
    """

    number: int = 1  # from 1; 0 has no task, and finishes what the others have made
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        with reading("--part", text):
            number, of = map(int, text.split("/"))
            if not 1 <= number <= of < 10**6:
                raise ValueError("not K/N with K from 1 to N, as 3/20")
        return cls(number, of)

    def has(self, task: int) -> bool:
        return self.number > 0 and task % self.of == self.number % self.of


WHOLE, JOIN = Share(), Share(0)


def prepare(
    collection: Collection,
    output: Path,
    options: PrepareOptions,
    run: RunTasks,
    screen: Screen,
    share: Share = WHOLE,
) -> PreparedSet | None:
    """Makes `output`/<name>/<version>, or goes on; None if other shares of the work are missing."""
    if not collection.parts:
        rule = f"has no images as {collection.name} has them: docs/own_images.md, imagenet21k.md."
        raise UserError(rule, field="--source")
    collections.check_class_names(collection.class_names)
    # Parsed before images are read for hours.
    policy = faults.policy(options.policy, collection.policy)
    splits = Splits.parse(options.splits or collection.splits)
    folder = output / collection.name / options.version
    work = folder / WORK_DIR
    try:
        work.mkdir(parents=True, exist_ok=True)
        one_at_once = filelock.FileLock(work / _LOCK, timeout=0)
        with one_at_once if share in (WHOLE, JOIN) else contextlib.nullcontext():
            if share == WHOLE:
                _refuse_differences(work, _SHARED, {"parts": 1})
                for path in (folder, work, work / _CATALOGUES):
                    delete_leftovers(path)
            _refuse_differences(work, _OPTIONS, dataclasses.asdict(options))
            parts = (collection, options, policy, splits, folder, run, screen, share)
            return _Preparation(*parts).data_set()
    except OSError as error:
        rule = f"cannot be written: {describe_error(error)}. Then the same command goes on."
        if isinstance(error, filelock.Timeout):
            rule = "is written by another preparation: wait for it."
        raise UserError(rule, field=str(folder)) from error


@dataclasses.dataclass(frozen=True)
class _Preparation:
    collection: Collection
    options: PrepareOptions
    policy: faults.Policy
    splits: Splits
    folder: Path
    run: RunTasks
    screen: Screen
    share: Share

    @property
    def work(self) -> Path:
        return self.folder / WORK_DIR

    def data_set(self) -> PreparedSet | None:
        started = time.monotonic()
        of_parts = self._tasks(self.collection.parts, self.work / _CATALOGUES, self.policy)
        # What is passed over may change: a system puts its files everywhere.
        read = [task for task in of_parts if task.part.reader not in faults.FAULTS]
        names = "\n".join(task.catalogue.name for task in read)
        source = hashlib.sha256(names.encode()).hexdigest()
        if note := prepared_set.read_note(self.folder):
            if note["source"] != source:
                _refuse(self.folder, "is ready, and of a collection that was other.")
            _clear(self.work)  # which may have been interrupted
            return prepared_set.read(self.folder)
        self._refuse_other_shares(source)
        # Evaluation sets first: they are small, and their paths may be wrong.
        evaluations, digests = self._evaluations()
        self._read(of_parts, "checking", self.share)
        if self._lacks("checked", [k for k, task in enumerate(of_parts) if not task.has_catalogue]):
            return None
        table = read_catalogues([task.catalogue for task in of_parts])
        collection = self.collection
        if not self.options.splits:
            table, notes = named_splits(table)
            for sentence in notes:
                self.screen.say(sentence)
            collection = dataclasses.replace(collection, notes=[*collection.notes, *notes])
        progress = functools.partial(self.screen.bar, "looking for duplicates")
        assignment = assign_splits(table, self.splits, self.options, evaluations, progress)
        # Until here the options may still change, and nothing is read again.
        self._refuse_other_shares(source)  # two may have started at the same time
        begun = dataclasses.asdict(self.options) | {_EVALUATIONS: digests}
        write_file(self.work / _OPTIONS, json.dumps(begun))
        data_set = self._write(table, assignment)
        if data_set is None:
            return None
        evaluation_sets.save(self.folder / _EVALUATIONS, evaluations)
        called = [one.name for one in evaluations]
        note = {
            "source": source,
            "evaluations": dict(zip(called, digests, strict=True)),
            "options": dataclasses.asdict(self.options),
            "versions": versions(PACKAGES),
            "seconds": round(time.monotonic() - started, 1),
        }
        report_files.write(data_set, collection, self.policy, note)
        prepared_set.write(data_set, note)  # the last file: from now on the data set is ready
        _clear(self.work)
        return data_set

    def _evaluations(self) -> tuple[list[EvaluationSet], list[str]]:
        def read(parts: Sequence[Part], name: str) -> pa.Table:
            folder = self.work / _EVALUATIONS / name
            of_parts = self._tasks(parts, folder, evaluation_sets.POLICY)
            self._read(of_parts, f"hashing {name}", WHOLE)
            return read_catalogues([task.catalogue for task in of_parts])

        paths = self.options.drop_duplicates_of
        evaluations = evaluation_sets.load(paths, read)
        digests = [evaluation_sets.digest(one) for one in evaluations]
        before = _noted(self.work, _OPTIONS).get(_EVALUATIONS, digests)
        for path, now, then in zip(paths, digests, before, strict=True):
            if now != then:
                _refuse(self.folder, f"was begun before {path} was changed.")
        return evaluations, digests

    def _tasks(self, parts: Sequence[Part], folder: Path, policy: faults.Policy) -> list[PartTask]:
        folder.mkdir(parents=True, exist_ok=True)
        pixels = self.options.max_image_pixels
        return [PartTask(k, part, policy, pixels, str(folder)) for k, part in enumerate(parts)]

    def _read(self, of_parts: Sequence[PartTask], title: str, share: Share) -> None:
        """Reads the parts of the share that have no catalogue yet, or one that may be old."""
        of_share = [task for task in of_parts if share.has(task.number)]
        # The first that writes shards takes the catalogues as they are, and so must the others.
        is_complete = share.of > 1 and all(task.has_catalogue for task in of_parts)
        todo = [] if is_complete else [task for task in of_share if not task.is_read()]
        problems: list[str] = []
        before, parts = len(of_share) - len(todo), max(len(of_share), 1)
        self.screen.bar(title, 0, parts)  # the time counts from now on
        for done, message in enumerate(self.run(tasks.read_part_or_message, todo), before + 1):
            problems += [message] * bool(message)
            self.screen.bar(title, done, parts)
        self.screen.bar(title, parts, parts)
        if problems:
            raise UserError("\n".join(problems))

    def _lacks(self, done: str, numbers: Sequence[int]) -> bool:
        """Returns whether tasks of others are missing, and says of whom."""
        if not numbers:
            return False
        of = _noted(self.work, _SHARED)["parts"]
        shares = ", ".join(f"{k}/{of}" for k in sorted({number % of or of for number in numbers}))
        if self.share == JOIN:
            raise UserError(f"is too early: not all is {done} of --part={shares}.", field="--join")
        self.screen.say(
            f"All of --part={self.share.number}/{of} is {done}. Once that of {shares} is, too, "
            "start the same command again: it writes files."
        )
        return True

    def _refuse_other_shares(self, source: str) -> None:
        if self.share == WHOLE:
            return
        now = {"parts": self.share.of, "source": source, **dataclasses.asdict(self.options)}
        if self.share == JOIN:
            del now["parts"]
            if not _noted(self.work, _SHARED):
                raise UserError(f"finds no work of any --part in {self.work}.", field="--join")
        elif not (self.work / _SHARED).exists():
            write_file(self.work / _SHARED, json.dumps(now))
        _refuse_differences(self.work, _SHARED, now)

    def _write(self, table: pa.Table, assignment: SplitAssignment) -> WrittenSet | None:
        """Writes missing shards, and TFDS's files; of one of several shares only its shards."""
        nbytes = table["nbytes"].to_numpy()
        multi_label = self.collection.multi_label or self.options.duplicates == "merge"
        weighted = split_assignment.weighted(table, assignment)
        name, shards = self.collection.name, dict[str, dict[str, np.ndarray]]()
        for split, rows in assignment.splits.items():
            ends = split_assignment.shard_ends(nbytes[rows], int(self.options.shard_mib * 2**20))
            shards[split] = {
                tfds_writer.file_name(name, split, i, len(ends)): some
                for i, some in enumerate(np.split(rows, ends[:-1]))
            }
        rows_of = {name: rows for split in shards.values() for name, rows in split.items()}
        if self.share in (WHOLE, JOIN):
            self._delete_others({*rows_of, *map(label_index.file_name, shards)})
        else:
            rows_of = {n: rows for k, (n, rows) in enumerate(rows_of.items()) if self.share.has(k)}
        missing = [rows for name, rows in rows_of.items() if not (self.folder / name).exists()]
        needed = sum(int(nbytes[rows].sum()) for rows in missing)
        free = shutil.disk_usage(self.work).free
        if needed > free:
            rule = f"needs {format_bytes(needed)} more, and has {format_bytes(free)} left."
            raise UserError(rule, field=str(self.folder))
        written: dict[str, WrittenShard] = {}
        of_others: list[int] = []

        def todo() -> Iterator[ShardTask]:
            """Made one by one: together they are as large as the catalogue."""
            for number, (name, rows) in enumerate(rows_of.items()):
                images = split_assignment.example_rows(table, rows, assignment)
                path, note = str(self.folder / name), str(self.work / f"{name}.json")
                task = ShardTask(path, note, tuple(images), multi_label, weighted)
                if earlier := tasks.already_written(task):
                    written[name] = earlier
                elif self.share == JOIN:
                    of_others.append(number)
                else:
                    yield task

        self.screen.bar("writing", 0, len(rows_of))
        for shard in self.run(tasks.write_shard, todo()):
            written[shard.name] = shard
            self.screen.bar("writing", len(written), len(rows_of))
        self.screen.bar("writing", len(rows_of), len(rows_of))
        if self.share not in (WHOLE, JOIN):
            number, of = self.share
            self.screen.say(f"All of --part={number}/{of} is written. Once all parts are: --join.")
            return None
        self._lacks("written", of_others)
        delete_leftovers(self.folder)
        sizes_of = {}
        for split, names in shards.items():
            done = [written[name] for name in names]
            sizes_of[split] = SplitSize([s.examples for s in done], sum(s.nbytes for s in done))
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
        shards = f"{self.collection.name}-*.{tfds_writer.FORMAT}-*"
        for pattern in (shards, label_index.file_name("*")):
            for path in self.folder.glob(pattern):
                if path.name not in names:
                    path.unlink()


def _refuse_differences(work: Path, name: str, now: Mapping[str, Any]) -> None:
    before, now = _noted(work, name), json.loads(json.dumps(now))
    differing = [name for name in now if before.get(name, now[name]) != now[name]]
    if differing:
        values = ", ".join(f"{name} was {before[name]!r}" for name in differing)
        _refuse(work.parent, f"was begun with other options: {values}.")


def _refuse(folder: Path, rule: str) -> NoReturn:
    cure = "Give another --version, or move the folder away."
    raise UserError(rule, field=str(folder), cure=cure)


def _noted(work: Path, name: str) -> dict[str, Any]:
    """Notes of an earlier start, _OPTIONS once shards are written with them; {} without."""
    return workdir.read_json(work / name, dict, f"Move {work.parent} away.") or {}


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (_LOCK, _OPTIONS):
            path.unlink()
