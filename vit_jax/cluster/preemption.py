"""Being asked to stop: one process by itself, or several, all after the same step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from vit_jax.cluster import maintenance
from vit_jax.cluster.peers import Peers
from vit_jax.core.process.stop import StopRequest

WHAT = (
    "training stops after the step that is under way, and saves. Ctrl-C from now on ends it at "
    "once: the steps since the last checkpoint are lost then."
)


class AgreedStop:
    """bool() says whether all are to stop now; all have to look in the same places and order."""

    def __init__(self, request: StopRequest, peers: Peers):
        self._request, self._peers = request, peers
        self._asked = self._stopping = False

    def __bool__(self) -> bool:
        if self._request and not self._asked:
            self._asked = True
            self._peers.stop.ask(f"{self._request} to {self._peers.me}")
        if not self._stopping:
            self._stopping = self._peers.stop.look()
        return self._stopping

    def __str__(self) -> str:
        """Such as "SIGTERM to process 1 (host, pid 7)"."""
        return self._peers.stop.reason


@contextlib.contextmanager
def stop_request(peers: Peers) -> Iterator[StopRequest | AgreedStop]:
    """What says whether SIGTERM or SIGINT has come, to this process or to any of several.

    On a TPU the maintenance of its machine counts as a SIGTERM.
    """
    if jax.default_backend() == "tpu":
        maintenance.watch()
    with StopRequest(WHAT) as request:
        yield AgreedStop(request, peers) if peers.several else request
