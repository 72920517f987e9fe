"""Signals in the first second of a command, during training, and in its last second."""

import os
import signal

import pytest

from tests.messages import refused, told
from vit_jax.core import signals
from vit_jax.core.signals import SIGNALS, StopRequest, exit_immediately_on_signal

# Stays in C for long, like a compiler or a wait for devices: no Python handler runs.
BUSY = """
import ctypes, os, signal, sys, threading, time
from vit_jax.core.signals import StopRequest
signals = [signal.Signals[name] for name in sys.argv[1:]]
def send():
    for number in signals:
        os.kill(os.getpid(), number)
        time.sleep(0.2)
with StopRequest("it saves.") as stop:
    threading.Timer(0.2, send).start()
    sleep = ctypes.CDLL(None).sleep
    left = 3
    while left:
        left = sleep(left)
print("done", stop)
"""


def test_a_signal_is_noticed_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert str(stop) == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_is_announced_once_and_the_first_is_kept(run_python):
    done = run_python("-c", BUSY, "SIGINT", "SIGTERM")
    assert (done.returncode, done.stdout) == (0, "done SIGINT\n"), done.stderr
    told(done.stderr, "SIGINT")


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_interrupt_ends_at_once(run_python, first):
    done = run_python("-c", BUSY, first.name, "SIGINT")
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
    told(done.stderr, first.name)


def test_requests_can_be_nested_and_repeated():
    for _ in range(2):
        with StopRequest() as outer:
            with StopRequest() as inner:
                os.kill(os.getpid(), signal.SIGTERM)
                assert inner and not outer
            os.kill(os.getpid(), signal.SIGTERM)
            assert outer
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("number", SIGNALS)
def test_with_nothing_to_save_a_signal_ends_at_once(number):
    before = signal.getsignal(number)
    with (
        refused(number.name, error=KeyboardInterrupt),
        exit_immediately_on_signal("before the end."),
    ):
        os.kill(os.getpid(), number)
        raise AssertionError("it goes on")
    assert signal.getsignal(number) == before


# The first slow import of every command, behind its flags.
STOPPED = """
import os
os.kill(os.getpid(), {number})
raise AssertionError("it goes on")
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_while_a_command_imports_it_ends_with_one_line(tmp_path, run_python, number):
    (tmp_path / "jax.py").write_text(STOPPED.format(number=int(number)))
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    flags = ["--config=configs/vit_digits.py", f"--workdir={tmp_path}"]
    done = run_python("-m", "vit_jax.train", *flags, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (75, "")
    told(done.stderr, number.name)


@pytest.mark.parametrize("number", SIGNALS)
def test_while_a_training_starts(tmp_path, run_python, number):
    """Sends the signal while the config is being read."""
    config = tmp_path / "config.py"
    config.write_text(
        f"def get_config(arg=None):\n    import os\n    os.kill(os.getpid(), {number})\n"
    )
    done = run_python(
        "-m", "vit_jax.train", f"--config={config}", f"--workdir={tmp_path}", fresh=True
    )
    assert done.returncode == 75
    told(done.stderr, number.name)


def test_a_program_that_imports_the_package_is_left_alone():
    before = [signal.getsignal(number) for number in SIGNALS]
    signals.answer_signals()
    signals.is_over()
    assert [signal.getsignal(number) for number in SIGNALS] == before


LATE = """
import os, signal
from vit_jax.core import signals
signals.end_with(3)
os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_when_all_is_done_it_changes_nothing(run_python, name):
    done = run_python("-c", LATE.format(name=name), fresh=True)
    assert (done.returncode, done.stderr) == (3, "")
