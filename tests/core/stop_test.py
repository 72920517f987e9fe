import os
import signal

import pytest

from vit_jax.core.stop import SIGNALS, StopRequest, at_once

TWICE = """
import os, signal, time
from vit_jax.core.stop import StopRequest
with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert stop
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
"""


def test_a_signal_is_noticed_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert str(stop) == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before


def test_second_interrupt_ends_at_once(run_python):
    assert run_python("-c", TWICE).returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("number", SIGNALS)
def test_where_nothing_is_to_be_saved_a_signal_ends_at_once(number):
    before = signal.getsignal(number)
    said = pytest.raises(KeyboardInterrupt, match=f"^Stopped by {number.name} before the end")
    with said, at_once("before the end."):
        os.kill(os.getpid(), number)
        raise AssertionError("it goes on")
    assert signal.getsignal(number) == before
