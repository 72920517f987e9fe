import os
import signal

from vit_jax.core.stop import StopRequest
from vit_jax.dist import preemption
from vit_jax.dist.preemption import stop_request

INTERRUPTED = """
import os, signal, time
from vit_jax.dist.preemption import stop_request
came = []
signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
with stop_request(several=True):
    os.kill(os.getpid(), signal.SIGINT)
    assert came == [signal.SIGTERM], came
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
"""


def test_one_process_takes_the_signal_itself():
    with stop_request(several=False) as stop:
        assert isinstance(stop, StopRequest)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop


def test_on_a_tpu_its_maintenance_is_watched(monkeypatch):
    watched = []
    monkeypatch.setattr(preemption.maintenance, "watch", lambda: watched.append(1))
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr("jax.default_backend", lambda backend=backend: backend)
        with stop_request(several=False):
            pass
    assert watched == [1]


def test_several_stop_at_the_look_that_was_agreed_on(monkeypatch):
    agreed = lambda look: look == 3  # as JAX has it: true once
    monkeypatch.setattr(preemption.multihost_utils, "reached_preemption_sync_point", agreed)
    with stop_request(several=True) as stop:
        assert [bool(stop) for _ in range(5)] == [False, False, True, True, True]
        assert str(stop) == "SIGTERM"


def test_an_interrupt_asks_and_a_second_one_ends(run_python):
    done = run_python("-c", INTERRUPTED)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
