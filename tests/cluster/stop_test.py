import http.server
import os
import signal
import threading
from contextlib import contextmanager

from vit_jax.cluster import stop as stops
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.stop import stop_request
from vit_jax.core.signals import StopRequest


def test_one_process_takes_the_signal_itself():
    with stop_request(Peers.alone()) as stop:
        assert isinstance(stop, StopRequest)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop


def test_on_a_tpu_its_maintenance_is_watched(monkeypatch):
    watched = []
    monkeypatch.setattr(stops, "watch_maintenance", lambda: watched.append(1))
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr("jax.default_backend", lambda backend=backend: backend)
        with stop_request(Peers.alone()):
            pass
    assert watched == [1]


@contextmanager
def metadata_server(events):
    """A metadata server that answers each query with the next event; None is an error."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            event = events[len(asked) - 1]
            self.send_response(503 if event is None else 200)
            self.send_header("ETag", f"tag{len(asked)}")
            self.end_headers()
            self.wfile.write((event or "").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_an_event_becomes_a_sigterm(monkeypatch):
    monkeypatch.setattr(stops, "RETRY_SECS", 0.01)
    events = ["NONE", "NONE", None, "TERMINATE_ON_HOST_MAINTENANCE"]
    with metadata_server(events) as (url, asked), StopRequest() as stop:
        stops.watch_maintenance(url).join(timeout=30)
        assert str(stop) == signal.SIGTERM.name
    assert len(asked) == len(events)
    assert all(flavor == "Google" for _, flavor in asked)
    assert "last_etag=tag2" in asked[-1][0]


def test_elsewhere_nothing_is_watched():
    with StopRequest() as stop:
        stops.watch_maintenance("http://localhost:9").join(timeout=30)
        assert not stop
