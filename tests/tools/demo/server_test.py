"""The server, with a stand-in for the model."""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from tests import messages
from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.tools.demo import server as servers
from vit_jax.tools.demo.examples import Sample
from vit_jax.tools.demo.server import MAX_BYTES, UNKNOWN, Server, Site

ANSWERS = {
    b"bad": UserError("The file is bad."),
    b"nan": NonFiniteError("Not finite."),
    b"bug": KeyError("secret"),
}
IMAGE = {"Content-Type": UNKNOWN}


def look(data):
    if data in ANSWERS:
        raise ANSWERS[data]
    return {"bytes": len(data)}


@pytest.fixture
def start():
    """`start(host)`: a running server."""
    started = []

    def run(host="127.0.0.1", site=None):
        server = Server(host, 0)
        server.site = site or Site("<p>Größe</p>", [Sample("cat", b"a cat")], look)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        started.append((server, thread))
        return server

    yield run
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, method="GET", path="/", body=None, headers=()):
    """(status, headers, body) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def refused(server, status, *args, **kwargs):
    """The message of an answer with this status."""
    answer = ask(server, *args, **kwargs)
    assert answer[0] == status, answer
    assert answer[1]["Content-Type"] == "application/json"
    assert "Access-Control-Allow-Origin" not in answer[1]
    return json.loads(answer[2])["error"]


def test_the_page_and_its_examples(start):
    server = start()
    status, headers, body = ask(server)
    assert (status, body.decode()) == (200, "<p>Größe</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "Python" not in headers["Server"]
    assert not [name for name in headers if name.lower().startswith("access-control")]
    status, headers, body = ask(server, "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "14", b"")
    status, headers, body = ask(server, path="/examples/0?x=1")
    assert (status, headers["Content-Type"], body) == (200, UNKNOWN, b"a cat")


def test_nothing_else_is_there(start):
    server = start()
    for path in ("/examples/1", "/examples/-1", "/examples/", "/look", "/../setup.py", "/page.py",
                 "//etc/passwd", "/examples/../../../../etc/passwd",
                 "/examples/%2e%2e/%2e%2e/setup.py"):  # fmt: skip
        assert "no such page" in refused(server, 404, path=path)


def test_an_image(start):
    server = start()
    status, headers, body = ask(server, "POST", "/look", b"image", IMAGE)
    assert (status, json.loads(body)) == (200, {"bytes": 5})
    assert headers["Cache-Control"] == "no-store"
    post = lambda status, body: refused(server, status, "POST", "/look", body, IMAGE)
    assert post(422, b"bad") == "The file is bad."
    assert post(500, b"nan") == "Not finite."
    assert "no such page" in refused(server, 404, "POST", "/", b"image", IMAGE)


def test_a_bug_is_told_without_its_secrets(start, capsys):
    said = refused(start(), 500, "POST", "/look", b"bug", IMAGE)
    assert "bug" in said and "secret" not in said
    assert "KeyError: 'secret'" in capsys.readouterr().err


def test_sizes(start, monkeypatch):
    server = start()
    assert ask(server, "POST", "/look", bytes(MAX_BYTES), IMAGE)[0] == 200
    too_large = refused(server, 413, "POST", "/look", bytes(MAX_BYTES + 1), IMAGE)
    assert too_large == "The file is larger than 20 MiB. Make the image smaller."
    for length in ("9" * 30, "-1", "²", "1e3", "", "0x10"):
        status = 413 if length == "9" * 30 else 411
        given = {**IMAGE, "Content-Length": length}
        assert refused(server, status, "POST", "/look", headers=given)
    chunked = {**IMAGE, "Transfer-Encoding": "chunked"}
    assert refused(server, 411, "POST", "/look", headers=chunked)


def test_what_is_too_large_and_comes_in_small_pieces_is_answered(start):
    with connect(start()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        length = MAX_BYTES + 2**16
        connection.sendall(f"{POST}Content-Length: {length}\r\n\r\n".encode())
        for _ in range(length // 2**16):
            connection.sendall(bytes(2**16))
            time.sleep(1e-3)
        assert connection.recv(9999).startswith(b"HTTP/1.0 413")


def test_an_image_that_comes_in_part(start):
    with connect(start()) as connection:
        connection.sendall(f"{POST}Content-Length: 100\r\n\r\nhalf".encode())
        connection.shutdown(socket.SHUT_WR)
        assert b"came only in part" in b"".join(iter(lambda: connection.recv(9999), b""))


def test_names_under_which_it_answers(start):
    server = start()
    own = f"127.0.0.1:{server.server_port}"
    for host in ("127.0.0.1", own, "LOCALHOST:9", "[::1]:9", "127.1.2.3"):
        assert ask(server, headers={"Host": host})[0] == 200
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1.evil.example",
                 "localhost.evil.example", "", "192.0.2.1", "[", "localhost@evil.example",
                 "0.0.0.0"):  # fmt: skip
        given = {"Host": host}  # a stranger may point it here
        assert f"http://{own}/" in refused(server, 403, headers=given)
        assert refused(server, 403, "POST", "/look", b"image", {**IMAGE, **given})


def test_other_sites(start):
    server = start()
    own = f"127.0.0.1:{server.server_port}"
    for origin in ("http://evil.example", "null", "http://localhost", f"http://{own}.evil.example"):
        given = {**IMAGE, "Origin": origin}
        assert "other sites" in refused(server, 403, "POST", "/look", b"image", given)
    given = {**IMAGE, "Origin": f"http://{own}"}
    assert ask(server, "POST", "/look", b"image", given)[0] == 200
    # What a form or a script of another site may send without being asked about it.
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json"):
        assert refused(server, 415, "POST", "/look", b"image", {"Content-Type": kind})
    assert refused(server, 501, "OPTIONS", "/look")


def test_only_some_images_at_once(start):
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slowly(data):
        inside.release()
        assert go_on.wait(20)
        return {}

    server = start(site=Site("", [], slowly))
    post = lambda: statuses.append(ask(server, "POST", "/look", b"x", IMAGE)[0])
    statuses = []
    threads = [threading.Thread(target=post) for _ in range(servers.MAX_WAITING)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=20)
    assert "try again" in refused(server, 503, "POST", "/look", b"x", IMAGE)
    go_on.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * servers.MAX_WAITING
    assert ask(server, "POST", "/look", b"x", IMAGE)[0] == 200


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=20)


def ended(connection):
    """Whether the server closes it, after whatever it still sends."""
    with connection, contextlib.suppress(ConnectionError):
        while connection.recv(2**16):
            pass
    return True


def test_connections_that_come_at_once_are_all_queued():
    with Server("127.0.0.1", 0) as server, contextlib.ExitStack() as opened:
        for _ in range(200):  # before any is accepted
            address = ("127.0.0.1", server.server_port)
            opened.enter_context(socket.create_connection(address, timeout=0.5))


def num_threads(server):
    return len([each for each in threading.enumerate() if "process_request" in each.name])


POST = f"POST /look HTTP/1.0\r\nHost: localhost\r\nContent-Type: {UNKNOWN}\r\n"


@pytest.mark.parametrize("sent", ["", "GET / HT", "GET / HTTP/1.0\r\nHost: loc",
                                  f"{POST}Content-Length: 999\r\n\r\nx"])  # fmt: skip
def test_slow_clients_take_so_many_threads_and_no_more(start, monkeypatch, sent):
    monkeypatch.setattr(servers, "MAX_CONNECTIONS", 6)
    monkeypatch.setattr(servers, "REQUEST_SECS", 1.0)
    server = start()
    slow = [connect(server) for _ in range(20)]
    for each in slow:
        with contextlib.suppress(ConnectionError):
            each.sendall(sent.encode())
    assert num_threads(server) <= 6 + 1  # and one that is just ending
    assert all(ended(each) for each in slow)  # at once, or after REQUEST_SECS
    assert ask(server)[0] == 200
    assert ask(server, "POST", "/look", b"image", IMAGE)[0] == 200


def test_a_request_that_comes_byte_by_byte_has_a_deadline(start, monkeypatch):
    monkeypatch.setattr(servers, "REQUEST_SECS", 0.5)
    server = start()
    began = time.monotonic()
    with connect(server) as connection, contextlib.suppress(ConnectionError):
        for letter in f"{POST}Content-Length: 999\r\n\r\n" + 999 * "x":
            connection.sendall(letter.encode())
            time.sleep(0.02)
    assert 0.4 < time.monotonic() - began < 10  # all would take 20 s
    assert ask(server)[0] == 200


def test_a_client_that_never_reads_is_left(start, monkeypatch):
    monkeypatch.setattr(servers, "ANSWER_SECS", 0.5)
    server = start(site=Site("x" * 64 * 2**20, [], look))
    with connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        end = time.monotonic() + 20
        while not num_threads(server):
            assert time.monotonic() < end
        while num_threads(server):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert ask(server, path="/nothing")[0] == 404


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "127.0.0.1"])
def test_an_address_that_cannot_be_listened_at(start, host):
    port = start().server_port
    with messages.refused(f"--host={host} --port={port}"):
        Server(host, port)


def test_where_it_answers(start):
    assert not start().is_public
    public = start("0.0.0.0")
    assert public.is_public
    assert public.url == f"http://127.0.0.1:{public.server_port}/"
    for host, status in (("192.0.2.1", 200), (socket.gethostname(), 200), ("evil.example", 403)):
        assert ask(public, headers={"Host": host})[0] == status
