"""Cloud TPU's machines are taken away for maintenance; their metadata server says so beforehand.

Its answer is then something else than NONE (cloud.google.com/compute/docs/metadata,
"instance/maintenance-event"). It becomes a SIGTERM, which everything else knows how to take.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

SERVER = "http://metadata.google.internal"
PATH = "/computeMetadata/v1/instance/maintenance-event"
NONE = "NONE"
ASK_SECS = 300  # the server answers after so long even if nothing has changed
RETRY_SECS = 10.0


def watch(server: str = SERVER) -> threading.Thread:
    """Sends this process a SIGTERM before its machine is maintained, from a thread that it starts.

    The thread ends at once where there is no such server.
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
    """(event, its tag), as soon as the event is another one than that of `etag`."""
    query = urllib.parse.urlencode(
        {"wait_for_change": "true", "last_etag": etag, "timeout_sec": ASK_SECS}
    )
    request = urllib.request.Request(
        f"{server}{PATH}?{query}", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=2 * ASK_SECS) as answer:
        return answer.read().decode().strip(), answer.headers["ETag"]
