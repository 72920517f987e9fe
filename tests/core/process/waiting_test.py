import threading

import pytest

from vit_jax.core.process.waiting import waiting_for, waits


def test_the_innermost_wait_of_each_thread_the_longest_first():
    started, free = threading.Event(), threading.Event()

    def hang():
        with waiting_for(lambda: "disk"):
            started.set()
            free.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    started.wait()
    with waiting_for(lambda: "examples 1, 2"):
        with waiting_for(lambda: "a.png"):
            assert [wait.what for wait in waits()] == ["disk", "a.png"]
        assert [wait.what for wait in waits()] == ["disk", "examples 1, 2"]
    free.set()
    thread.join()
    assert waits() == []


def test_a_read_that_fails_is_no_longer_waited_for():
    with pytest.raises(OSError, match="gone"), waiting_for(lambda: "a.png"):
        raise OSError("gone")
    assert waits() == []
