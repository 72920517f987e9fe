"""Requests to stop: by a signal, or before a TPU's maintenance; all processes of a run agree."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import jax

from vit_jax.cluster.peers import Peers
from vit_jax.core.signals import StopRequest

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
def stop_request(peers: Peers, *, exits: bool = True) -> Iterator[StopRequest]:
    """Context with a stop request for a signal, to this process or to any of several.

    On a TPU a maintenance event of its machine counts as a SIGTERM. exits: as for StopRequest.
    """
    if jax.default_backend() == "tpu":
        watch_maintenance()
    with StopRequest(WHAT, exits=exits) as request:
        yield peers.agreed_stop(request)


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
