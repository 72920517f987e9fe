"""Being asked to stop, with several processes: all of them stop after the same step.

JAX has a handler for SIGTERM of its own then: the process that gets the signal tells the others,
and they agree on the next look that none of them has had.

At present they sometimes miss that look, and train on: tests/multihost_test.py has such a run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from vit_jax.core.stop import StopRequest
from vit_jax.dist import maintenance


class AgreedStop:
    """bool() says whether all are to stop now; all have to look in the same places and order."""

    def __init__(self) -> None:
        self._looks = 0
        self._stopping = False

    def __bool__(self) -> bool:
        if not self._stopping:
            self._looks += 1
            self._stopping = multihost_utils.reached_preemption_sync_point(self._looks)
        return self._stopping

    def __str__(self) -> str:
        return signal.SIGTERM.name


@contextlib.contextmanager
def stop_request(*, several: bool) -> Iterator[StopRequest | AgreedStop]:
    """What says whether SIGTERM or SIGINT has come, to this process or to one of several.

    On a TPU the maintenance of its machine counts as a SIGTERM.
    """
    if jax.default_backend() == "tpu":
        maintenance.watch()
    if not several:
        with StopRequest() as stop:
            yield stop
        return
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield AgreedStop()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The first one asks to stop, the second one ends the process at once, without saving."""
    del frame
    signal.signal(number, lambda number, frame: os._exit(128 + number))
    os.kill(os.getpid(), signal.SIGTERM)
