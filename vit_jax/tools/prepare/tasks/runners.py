"""Runs independent tasks: in processes of this machine, or on Apache Beam."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file

MOST = 1024  # processes

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_processes(workers: int) -> Callable[..., Iterator[object]]:
    """A function that runs tasks in so many processes and yields results as they come."""

    def run(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        if workers == 1:
            yield from map(function, tasks)
            return
        # Not forked: a copy of a process with threads may deadlock.
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_watch)
        try:
            yield from _run(pool, function, tasks, ahead=2 * workers)
        except BrokenProcessPool as error:
            raise UserError(
                "A worker was killed, perhaps because memory ran out: the same command goes on; "
                "give it fewer --workers."
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


def _watch() -> None:
    """Ends this worker with its parent, even if that is killed and cannot tell it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def on_beam(folder: Path, beam_flags: Sequence[str]) -> Callable[..., Iterator[object]]:
    """Like `in_processes`, on one machine or many. UserError if Beam is not installed.

    Tasks and results are files in `folder`, which no other run uses, so the pipeline carries their
    numbers only. All machines must see the source and the output under the same paths, on a shared
    file system. They also need this package; --beam_flags tells Beam how they get it.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(
            f"--runner=beam needs Apache Beam ({error}): pip install 'vit-jax-pretraining[beam]'."
        ) from error

    def run(function: Callable[[Any], object], tasks: Iterable[object]) -> Iterator[object]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        number = 0
        for number, task in enumerate(tasks, 1):
            (folder / f"{number}.task").write_bytes(pickle.dumps(task))
        if number:
            with beam.Pipeline(options=PipelineOptions(list(beam_flags))) as pipeline:
                numbers = pipeline | beam.Create(range(1, number + 1)) | beam.Reshuffle()
                _ = numbers | beam.Map(run_task, function, str(folder))
        for k in range(1, number + 1):
            result = pickle.loads((folder / f"{k}.result").read_bytes())
            if isinstance(result, Exception):
                raise result
            yield result
        shutil.rmtree(folder, ignore_errors=True)

    return run


def run_task(number: int, function: Callable[[Any], object], folder: str) -> None:
    """Runs a task on a worker; errors of the user or the disk are results, too."""
    path = Path(folder, f"{number}.result")
    if path.exists():  # Beam may repeat a finished task
        return
    task = pickle.loads(path.with_suffix(".task").read_bytes())
    try:
        result = function(task)
    except (UserError, OSError) as error:
        result = error
    with atomic_file(path) as temporary:
        temporary.write_bytes(pickle.dumps(result))
