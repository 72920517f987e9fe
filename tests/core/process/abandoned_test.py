PROGRAM = """
import threading
from vit_jax.core import errors
from vit_jax.core.process import abandoned, command
def main(arguments):
    thread = threading.Thread(target=threading.Event().wait)  # Python would wait for it
    thread.start()
    abandoned.leave_behind(thread)
    raise errors.UserError("the disk hangs")
command.run(main)
"""


def test_a_command_ends_without_a_thread_that_hangs(run_python):
    done = run_python("-c", PROGRAM, timeout_secs=60)
    assert (done.returncode, done.stderr) == (1, "error: the disk hangs\n")
