"""Messages between processes: JSON objects, one per line, over a TCP connection."""

import contextlib
import json
import socket
import threading
from typing import Any

Message = dict[str, Any]

SEND_TIMEOUT_SECS = 10.0
MAX_LINE_BYTES = 1 << 20


class Connection:
    """One end of a connection, usable with `select`; any thread may send."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._socket.settimeout(SEND_TIMEOUT_SECS)
        self._sending = threading.Lock()
        self._rest = b""  # the beginning of a message

    def fileno(self) -> int:
        """The socket's file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends if possible; a closed other end shows only when receiving."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """The messages that have arrived, once something has; None: the connection has ended.

        A peer that does not follow this protocol counts as ended too.
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
        """Closes the connection; may be called twice."""
        self._socket.close()
