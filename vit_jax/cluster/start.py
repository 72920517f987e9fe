"""The life cycle of a run of several processes: they connect, train, stop and end together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax

from vit_jax.cluster import rendezvous
from vit_jax.cluster.peers import GRACE_SECS, Peers
from vit_jax.cluster.rendezvous import Cluster
from vit_jax.core import command, signals
from vit_jax.core.errors import NonFiniteError, PeerLost, Preempted, UserError
from vit_jax.core.signals import StopRequest

MAX_LAST_WORDS = 500  # characters
BEFORE_ALL_CAME = "before all processes had come; nothing was begun. Start the same command again."
JAX_SLOWER = 3  # than our own time-out, so that ours reports first
WHAT = (
    "training stops after the step that is under way, and saves. Ctrl-C from now on ends it at "
    "once: the steps since the last checkpoint are lost then."
)
SERVER = "http://metadata.google.internal"
PATH = "/computeMetadata/v1/instance/maintenance-event"
NONE = "NONE"
ASK_SECS = 300  # the server answers after this long even if nothing has changed
RETRY_SECS = 10.0


@contextlib.contextmanager
def connect_processes(
    cluster: Cluster | None,
    *,
    start_timeout_secs: float,
    peer_timeout_secs: float,
    barrier_timeout_secs: float,
) -> Iterator[Peers]:
    """Context in which jax.devices() spans all processes of the cluster; None: only this process.

    start_timeout_secs: how long to wait until all have connected; the others: see Peers.

    If anything but Preempted ends it, this process ends immediately with its exit status: going on,
    or an orderly exit, would wait for the others. They notice, and end with status 76.

    Raises PeerLost and UserError until all have connected (rendezvous.py).
    """
    if cluster is None:
        yield Peers.alone()
        return
    with signals.exit_immediately_on_signal(BEFORE_ALL_CAME):
        meeting = rendezvous.meet(cluster, timeout_secs=start_timeout_secs)
    ending = _Ending(f"[process {cluster.process_id} of {cluster.num_processes}] ")
    peers = Peers(
        meeting,
        cluster.process_id,
        timeout_secs=peer_timeout_secs,
        barrier_timeout_secs=barrier_timeout_secs,
        on_lost=ending.now,
    )
    with explained_abort(lambda: ending.if_lost(peers)):
        try:
            jax.config.update("jax_enable_preemption_service", False)  # see peers.py
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


def _finish(peers: Peers) -> None:
    """Ends all processes alike; one that has already ended does not count as lost."""
    peers.barrier("the end")
    jax.distributed.shutdown()
    peers.close()


class _Ending:
    """Ends this process at once, from one of its threads, with its last message."""

    def __init__(self, speaker: str):
        self._speaker = speaker
        self._first = threading.Lock()  # its holder ends the process; never released

    def because_of(self, error: BaseException, peers: Peers) -> NoReturn:
        """Ends from the main thread; `error` may only reflect the end of another process."""
        if not isinstance(error, UserError | NonFiniteError):
            error = peers.lost(None if _may_be_a_loss(error) else 0) or error
        self._first.acquire()
        status = self._report(error)
        peers.leave(str(error)[:MAX_LAST_WORDS])
        os._exit(status)

    def if_lost(self, peers: Peers) -> None:
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


class AgreedStop:
    """A stop request for all processes; all must call bool() in the same places and order."""

    def __init__(self, request: StopRequest, peers: Peers):
        self._request, self._peers = request, peers
        self._asked = self._stopping = False

    def __bool__(self) -> bool:
        if self._request and not self._asked:
            self._asked = True
            self._peers.stop.request(f"{self._request} to {self._peers.me}")
        if not self._stopping:
            self._stopping = self._peers.stop.should_stop()
        return self._stopping

    def __str__(self) -> str:
        """The reason, such as "SIGTERM to process 1 (host, pid 7)"."""
        return self._peers.stop.reason


@contextlib.contextmanager
def stop_request(peers: Peers, *, exits: bool = True) -> Iterator[StopRequest | AgreedStop]:
    """Context with a stop request for SIGTERM or SIGINT, to this process or to any of several.

    On a TPU a maintenance event of its machine counts as a SIGTERM. exits: as for StopRequest.
    """
    if jax.default_backend() == "tpu":
        watch_maintenance()
    with StopRequest(WHAT, exits=exits) as request:
        yield AgreedStop(request, peers) if peers.several else request


def watch_maintenance(server: str = SERVER) -> threading.Thread:
    """Starts a thread that sends this process a SIGTERM before its machine is maintained.

    Cloud TPU's machines are taken away for maintenance; their metadata server announces it: its
    answer is then something other than NONE (cloud.google.com/compute/docs/metadata,
    "instance/maintenance-event"). The thread ends at once if there is no such server.
    """
    thread = threading.Thread(target=_watch, args=(server,), name="maintenance", daemon=True)
    thread.start()
    return thread


def _watch(server: str) -> None:
    try:
        event, etag = _ask(server, etag="0")  # answered at once
    except (OSError, ValueError):
        return
    while event == NONE:
        try:
            event, etag = _ask(server, etag)
        except (OSError, ValueError):
            time.sleep(RETRY_SECS)
    os.kill(os.getpid(), signal.SIGTERM)


def _ask(server: str, etag: str) -> tuple[str, str]:
    """(event, its tag), as soon as the event differs from the one with tag `etag`."""
    query = urllib.parse.urlencode(
        {"wait_for_change": "true", "last_etag": etag, "timeout_sec": ASK_SECS}
    )
    request = urllib.request.Request(
        f"{server}{PATH}?{query}", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=2 * ASK_SECS) as answer:
        return answer.read().decode().strip(), answer.headers["ETag"]
