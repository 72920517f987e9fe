"""Ports and moments, for tests of several processes."""

import socket
import time


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def wait_for(get, secs=60, what=lambda: "it does not come"):
    """The first true result of `get`; `what` tells in what state it fails."""
    until = time.monotonic() + secs
    while not (result := get()):
        assert time.monotonic() < until, what()
        time.sleep(0.02)
    return result
