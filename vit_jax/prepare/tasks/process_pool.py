"""Runs independent tasks in processes of this machine."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from vit_jax.core.errors import UserError

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
