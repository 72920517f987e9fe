import os
import signal

from vit_jax.cluster import preemption
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.preemption import stop_request
from vit_jax.core.process.stop import StopRequest


def test_one_process_takes_the_signal_itself():
    with stop_request(Peers.alone()) as stop:
        assert isinstance(stop, StopRequest)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop


def test_on_a_tpu_its_maintenance_is_watched(monkeypatch):
    watched = []
    monkeypatch.setattr(preemption.maintenance, "watch", lambda: watched.append(1))
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr("jax.default_backend", lambda backend=backend: backend)
        with stop_request(Peers.alone()):
            pass
    assert watched == [1]
