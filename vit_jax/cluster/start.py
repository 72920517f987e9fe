"""The life cycle of a run of several processes: they connect, train and end together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax

from vit_jax.cluster import rendezvous
from vit_jax.cluster.connected import GRACE_SECS, ConnectedPeers
from vit_jax.cluster.members import Cluster, Secret
from vit_jax.core import command, signals
from vit_jax.core.errors import NonFiniteError, PeerLost, Preempted, UserError

MAX_LAST_WORDS = 500  # characters
BEFORE_ALL_CAME = "before all processes had come; nothing was begun. Start the same command again."
JAX_SLOWER = 3  # than our own time-out, so that ours reports first


@contextlib.contextmanager
def connect_processes(
    cluster: Cluster,
    secret: Secret,
    *,
    start_timeout_secs: float,
    peer_timeout_secs: float,
    barrier_timeout_secs: float,
) -> Iterator[ConnectedPeers]:
    """Context in which jax.devices() spans all processes of the cluster.

    secret: as in rendezvous.meet. start_timeout_secs: how long to wait until all have connected;
    the others: see ConnectedPeers.

    If anything but Preempted ends it, this process ends immediately with its exit status: going on,
    or an orderly exit, would wait for the others. They notice, and end with status 76.

    Raises PeerLost and UserError until all have connected (rendezvous.py).
    """
    with signals.exit_immediately_on_signal(BEFORE_ALL_CAME):
        meeting = rendezvous.meet(cluster, secret, timeout_secs=start_timeout_secs)
    ending = _Ending(f"[process {cluster.process_id} of {cluster.num_processes}] ")
    peers = ConnectedPeers(
        meeting.members,
        meeting.connections,
        cluster.process_id,
        timeout_secs=peer_timeout_secs,
        barrier_timeout_secs=barrier_timeout_secs,
        on_lost=ending.now,
    )
    with explained_abort(lambda: ending.if_lost(peers)):
        try:
            jax.config.update("jax_enable_preemption_service", False)  # see connected.py
            jax.distributed.initialize(
                cluster.coordinator,
                cluster.num_processes,
                cluster.process_id,
                local_device_ids=cluster.local_devices,
                cluster_detection_method="deactivate",
                initialization_timeout=int(start_timeout_secs),
                heartbeat_timeout_seconds=int(JAX_SLOWER * (peer_timeout_secs + GRACE_SECS)),
            )
            try:
                yield peers
            except Preempted:
                _finish(peers)
                raise
            _finish(peers)
        except Preempted:
            raise
        except BaseException as error:
            ending.because_of(error, peers)


@contextlib.contextmanager
def explained_abort(explain: Callable[[], object]) -> Iterator[None]:
    """Calls `explain` when this process is about to abort; if it returns, the abort goes on.

    JAX's client aborts its process as soon as process 0 is gone, from a C++ thread that never calls
    Python. So a handler of Python's `signal` would never run: this one is set in the C library.
    """
    if os.name != "posix":  # no C library under this name
        yield
        return
    handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = handler_type(lambda number: explain() and None)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = install(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        install(signal.SIGABRT, before)


def _finish(peers: ConnectedPeers) -> None:
    """Ends all processes alike; one that has already ended does not count as lost."""
    peers.barrier("the end")
    jax.distributed.shutdown()
    peers.close()


class _Ending:
    """Ends this process at once, from one of its threads, with its last message."""

    def __init__(self, speaker: str):
        self._speaker = speaker
        self._first = threading.Lock()  # its holder ends the process; never released

    def because_of(self, error: BaseException, peers: ConnectedPeers) -> NoReturn:
        """Ends from the main thread; `error` may only reflect the end of another process."""
        is_known = isinstance(error, UserError | NonFiniteError)
        may_be_a_loss = _may_be_a_loss(error)
        if may_be_a_loss or not is_known:
            wait_secs = GRACE_SECS if is_known else None
            error = peers.lost(wait_secs if may_be_a_loss else 0) or error
        self._first.acquire()
        status = self._report(error)
        peers.leave(str(error)[:MAX_LAST_WORDS])
        os._exit(status)

    def if_lost(self, peers: ConnectedPeers) -> None:
        """Ends from an aborting thread; returns if no other process was lost."""
        lost = peers.lost(GRACE_SECS)
        if lost is not None:
            self.now(lost)

    def now(self, lost: PeerLost) -> NoReturn:
        """Ends from another thread, while the main thread may hang."""
        self._first.acquire()
        os._exit(self._report(lost))

    def _report(self, error: BaseException) -> int:
        status = command.report(error, self._speaker)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return status


def _may_be_a_loss(error: BaseException) -> bool:
    """Returns whether an error may come from a lost connection, or hide one that does."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, jax.errors.JaxRuntimeError) or "Gloo" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
