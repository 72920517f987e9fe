"""Messages between processes: JSON objects, one a line, over a TCP connection."""

import contextlib
import json
import socket
import threading
from typing import Any

Message = dict[str, Any]

SEND_TIMEOUT_SECS = 10.0
MAX_LINE_BYTES = 1 << 20


class Connection:
    """One end of a connection. It can be given to `select`; any thread may send."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._socket.settimeout(SEND_TIMEOUT_SECS)
        self._sending = threading.Lock()
        self._rest = b""  # the beginning of a message

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends if it can: that the other end has gone shows when one receives."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """What has come, to be called when something has; None: nothing will come any more.

        Nothing will either from somebody who does not talk like this.
        """
        try:
            chunk = self._socket.recv(1 << 16)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return None
        understood = all(isinstance(m, dict) for m in messages)
        return messages if chunk and understood and len(self._rest) < MAX_LINE_BYTES else None

    def close(self) -> None:
        """May be called twice."""
        self._socket.close()
