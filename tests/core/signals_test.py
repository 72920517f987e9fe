"""Signals in the first second of a command, during training, and in its last second."""

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import python_environment
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
    assert "SIGINT" in done.stderr


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_interrupt_ends_at_once(run_python, first):
    done = run_python("-c", BUSY, first.name, "SIGINT")
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
    assert first.name in done.stderr


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
        pytest.raises(KeyboardInterrupt, match=number.name),
        exit_immediately_on_signal("before the end."),
    ):
        os.kill(os.getpid(), number)
        raise AssertionError("it goes on")
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored():
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# Says something when asked to stop, and ends as a command does.
LOST = """
import pathlib, sys, time
from vit_jax.core import command, errors
from vit_jax.core.screen import Screen
from vit_jax.core.signals import StopRequest
screen = Screen()
with StopRequest("it saves.") as stop:
    screen.say("ready")
    while not stop:
        time.sleep(0.01)
    screen.say("saving")
pathlib.Path(sys.argv[1]).write_text(str(stop))
sys.exit(command.report(errors.Preempted("Saved.")))
"""


def test_a_lost_terminal_stops_it_as_a_signal_does(tmp_path):
    """As when ssh ends: SIGHUP comes, and each further write fails with EIO."""
    terminal, inside = os.openpty()
    command = ["setsid", "--ctty", sys.executable, "-c", LOST, str(tmp_path / "stop")]
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=python_environment()
    )
    os.close(inside)
    os.read(terminal, 5)
    os.close(terminal)
    assert process.wait() == 75
    assert (tmp_path / "stop").read_text() == "SIGHUP"


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
    assert number.name in done.stderr


def test_while_a_training_starts(tmp_path, run_python):
    """Sends the signal while the config is being read."""
    config, number = tmp_path / "config.py", signal.SIGTERM
    config.write_text(
        f"def get_config(arg=None):\n    import os\n    os.kill(os.getpid(), {number})\n"
    )
    done = run_python(
        "-m", "vit_jax.train", f"--config={config}", f"--workdir={tmp_path}", fresh=True
    )
    assert done.returncode == 75
    assert number.name in done.stderr


LATE = """
import os, signal
from vit_jax.core import signals
signals.end_with(3)
os.kill(os.getpid(), signal.{name})
"""


def test_when_all_is_done_it_changes_nothing(run_python):
    done = run_python("-c", LATE.format(name="SIGTERM"), fresh=True)
    assert (done.returncode, done.stderr) == (3, "")
