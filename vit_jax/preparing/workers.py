"""Runs tasks that do not know of each other, in processes of this machine."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from vit_jax.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_processes(workers: int) -> Callable[..., Iterator[object]]:
    """A function that runs tasks in so many processes, and yields results as they come."""

    def run(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        if workers == 1:
            yield from map(function, tasks)
            return
        # Not forked: a copy of a process with threads may stand still.
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_quiet)
        try:
            yield from _run(pool, function, tasks, ahead=2 * workers)
        except BrokenProcessPool as error:
            raise UserError(
                "A worker was killed, perhaps because memory ran out: the same command goes on; "
                "give it fewer --workers."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return run


def _run(
    pool: concurrent.futures.Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    ahead: int,
) -> Iterator[Result]:
    """Never holds more than `ahead` tasks in the pool: they may be large."""
    waiting: set[concurrent.futures.Future[Result]] = set()
    for task in tasks:
        if len(waiting) >= ahead:
            done, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            yield from (future.result() for future in done)
        waiting.add(pool.submit(function, task))
    for future in concurrent.futures.as_completed(waiting):
        yield future.result()


def _quiet() -> None:
    """Ctrl-C is for the parent, which then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
