import threading

from tests.messages import failed, refused
from vit_jax.core.waiting import waiting_for, waits

PROGRAM = """
import threading
from vit_jax.core import errors
from vit_jax.core import command, waiting
def main(arguments):
    thread = threading.Thread(target=threading.Event().wait)  # Python would wait for it
    thread.start()
    waiting.abandon_thread(thread)
    raise errors.UserError("the disk hangs")
command.run(main)
"""


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
    with refused("gone", error=OSError), waiting_for(lambda: "a.png"):
        raise OSError("gone")
    assert waits() == []


def test_a_command_ends_without_a_thread_that_hangs(run_python):
    done = run_python("-c", PROGRAM, timeout_secs=60)
    failed(done, "disk")
