"""Ports and moments, for tests of several processes."""

import concurrent.futures
import socket
import time


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def run_two(run_python, arguments, **options):
    """What two processes of `arguments(index, port)` that run at once end with."""
    port = free_port()
    run = lambda index: run_python(*arguments(index, port), **options)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, range(2)))
    assert [each.returncode for each in done] == [0, 0], done
    return done


def wait_for(get, secs=60, what=lambda: "it does not come"):
    """The first true result of `get`; `what` tells in what state it fails."""
    until = time.monotonic() + secs
    while not (result := get()):
        assert time.monotonic() < until, what()
        time.sleep(0.02)
    return result
