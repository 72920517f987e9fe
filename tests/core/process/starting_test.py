"""A signal in the first second of a command, and in its last."""

import os
import signal

import pytest

from vit_jax.core.process import starting

# What every command imports first of all that takes long.
STOPPED = """
import os
os.kill(os.getpid(), {number})
raise AssertionError("it goes on")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_command_imports_it_ends_with_one_line(tmp_path, run_python, number):
    (tmp_path / "jax.py").write_text(STOPPED.format(number=int(number)))
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = run_python("-m", "vit_jax.train", "--help", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (75, "")
    said = f"Stopped by {number.name} before anything was begun. Start the same command again.\n"
    assert done.stderr == said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_training_starts(tmp_path, run_python, number):
    """Here: while its config is read."""
    config = tmp_path / "config.py"
    config.write_text(
        f"def get_config(arg=None):\n    import os\n    os.kill(os.getpid(), {number})\n"
    )
    done = run_python(
        "-m", "vit_jax.train", f"--config={config}", f"--workdir={tmp_path}", fresh=True
    )
    assert done.returncode == 75
    assert done.stderr == (
        f"Stopped by {number.name} before anything was begun. Start the same command again.\n"
    )


def test_a_program_that_imports_the_package_is_left_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    starting.answer_signals()
    starting.is_over()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


LATE = """
import os, signal
from vit_jax.core.process import starting
starting.end_with(3)
os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_when_all_is_done_it_changes_nothing(run_python, name):
    done = run_python("-c", LATE.format(name=name), fresh=True)
    assert (done.returncode, done.stderr) == (3, "")
