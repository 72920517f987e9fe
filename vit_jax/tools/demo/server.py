"""The server: one page, its examples, and the answers to images; nothing is written to disk.

Other pages in the same browser are kept out: requests are answered only under names that a stranger
cannot point at this machine (DNS rebinding), only from the page itself, and never with CORS.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import io
import ipaddress
import json
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.tools.demo.examples import Sample

MAX_BYTES = 20 * 2**20  # of an image file
MAX_WAITING = 8  # images that are being looked at
MAX_CONNECTIONS = 32  # with more, that which has been sending or reading longest is closed
REQUEST_SECS, ANSWER_SECS = 60.0, 30.0  # the most that all of it may take, however it comes
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page's own policy is in it
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}
HTML, JSON = "text/html; charset=utf-8", "application/json"
UNKNOWN = "application/octet-stream"  # what a page of another site cannot send unasked


class Site(NamedTuple):
    """What is served.

    Attributes:
      page: HTML.
      examples: image files, /examples/0 and so on.
      look: the bytes of an image file -> what is sent as JSON; UserError for a bad file.
    """

    page: str
    examples: Sequence[Sample]
    look: Callable[[bytes], dict]


class Server(http.server.ThreadingHTTPServer):
    """Takes the port at once, so that a wrong one is said before a model is read.

    Args:
      host: a name or an address of this machine.
      port: 0 for any that is free.

    Raises:
      UserError: the port or the address cannot be had.
    """

    daemon_threads = True
    site: Site  # set before `serve_forever`

    def __init__(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.address_family, address = found[0][0], found[0][4]
            super().__init__((str(address[0]), int(address[1])), Handler)
        except OSError as error:
            raise _unavailable(host, port, error) from error
        self.host, self.waiting = host, threading.BoundedSemaphore(MAX_WAITING)
        self._slow: dict[socket.socket, None] = {}  # connections that wait for their client
        self._lock = threading.Lock()

    def server_bind(self) -> None:
        """Binds, without asking the network what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread of its own. Slow clients make room for new ones."""
        with self._lock:
            while len(self._slow) >= MAX_CONNECTIONS:
                oldest = next(iter(self._slow))
                del self._slow[oldest]
                with contextlib.suppress(OSError):  # it has gone
                    oldest.shutdown(socket.SHUT_RDWR)
            self._slow[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._slow.pop(request, None)
        super().shutdown_request(request)

    @contextlib.contextmanager
    def working(self, request: Any) -> Iterator[None]:
        """Meanwhile a connection waits for the model, not for its client."""
        with self._lock:
            self._slow.pop(request, None)
        yield
        with self._lock:
            self._slow[request] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no news."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def is_public(self) -> bool:
        """Whether other machines reach it."""
        return not ipaddress.ip_address(self.server_name).is_loopback

    @property
    def url(self) -> str:
        """An address of the page on this machine."""
        name = self.server_name
        if ipaddress.ip_address(name).is_unspecified:
            name = "::1" if self.address_family == socket.AF_INET6 else "127.0.0.1"
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    def knows(self, host: str) -> bool:
        """Whether a request for this Host is meant for this server: HOST or HOST:PORT.

        An address is: only names can be pointed elsewhere by a stranger.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            own = {"localhost", self.host.lower()}
            return name in (own | {socket.gethostname().lower()} if self.is_public else own)
        return address.is_loopback or self.is_public


class _Receiving(io.RawIOBase):
    """What a client sends, as long as it comes before a deadline."""

    def __init__(self, connection: socket.socket):
        self._connection, self._deadline = connection, time.monotonic() + REQUEST_SECS

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads some bytes. TimeoutError after the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "vit_jax", ""

    def setup(self) -> None:
        """Reads with a deadline for all of the request, not for each of its bytes."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Receiving(self.connection))

    def do_GET(self) -> None:
        """The page, or an example."""
        if not self._is_meant():
            return
        path, site = urlsplit(self.path).path, self.server.site
        examples = {f"/examples/{k}": each.data for k, each in enumerate(site.examples)}
        if path == "/":
            self._send(HTTPStatus.OK, HTML, site.page.encode())
        elif path in examples:
            self._send(HTTPStatus.OK, UNKNOWN, examples[path])
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "There is no such page. The demo’s is /.")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """An image, which is the body as it is."""
        if not self._is_meant():
            return
        if urlsplit(self.path).path != "/look":
            self.send_error(HTTPStatus.NOT_FOUND, "There is no such page. Images go to /look.")
        elif self.headers.get_content_type() != UNKNOWN:
            self.send_error(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send the image as Content-Type: {UNKNOWN}."
            )
        elif (data := self._received()) is None:
            pass
        elif not self.server.waiting.acquire(blocking=False):
            self.send_error(
                HTTPStatus.SERVICE_UNAVAILABLE, "Other images are being looked at: try again."
            )
        else:
            try:
                with self.server.working(self.request):
                    answer = self._look(data)
            finally:
                self.server.waiting.release()
            self._send(*answer)

    def _received(self) -> bytes | None:
        """The image; None if that was answered with what is wrong about it."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self.send_error(HTTPStatus.LENGTH_REQUIRED, "The request does not say how long it is.")
            return None
        if len(length) > 18 or int(length) > MAX_BYTES:
            self.send_error(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The file is larger than {MAX_BYTES // 2**20} MiB. Make the image smaller.",
            )
            self._drain()
            return None
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            self.send_error(HTTPStatus.BAD_REQUEST, "The image came only in part: send it again.")
            return None
        return data

    def _look(self, data: bytes) -> tuple[HTTPStatus, str, bytes]:
        """What is sent about an image: the arguments of `_send`."""
        try:
            return HTTPStatus.OK, JSON, json.dumps(self.server.site.look(data)).encode()
        except UserError as error:
            status, message = HTTPStatus.UNPROCESSABLE_ENTITY, str(error)
        except NonFiniteError as error:
            status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
        except Exception:
            traceback.print_exc()
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            message = "This image met a bug: what it was is printed where the demo was started."
        return status, JSON, json.dumps({"error": message}).encode()

    def _is_meant(self) -> bool:
        """Whether the request came to this server by a name of its own, and from no other site."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.knows(host):
            self.send_error(
                HTTPStatus.FORBIDDEN, f"The demo does not answer to this name: {self.server.url}"
            )
        elif origin is not None and urlsplit(origin).netloc != host:
            self.send_error(HTTPStatus.FORBIDDEN, "The demo does not answer to other sites.")
        else:
            return True
        return False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """One message, as JSON; http.server calls it too, for what it does not understand."""
        text = message or HTTPStatus(code).phrase
        self._send(HTTPStatus(code), JSON, json.dumps({"error": text}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.connection.settimeout(ANSWER_SECS)  # of each write, however slowly it is read
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drain(self) -> None:
        """Reads some of what is not wanted: a browser shows no answer before it has sent all."""
        left = 64 * 2**20
        while left > 0 and (read := self.rfile.read1(2**20)):
            left -= len(read)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what people look at is theirs."""


def _unavailable(host: str, port: int, error: OSError) -> UserError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return UserError(
            f"--host={host} is not an address of this machine: give 127.0.0.1 for this machine "
            "alone, 0.0.0.0 for all that reach it."
        )
    reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
    return UserError(f"--port={port} {reason}. Give another: --port={_free(host)} is free.")


def _free(host: str) -> int:
    with socket.create_server((host, 0), family=socket.getaddrinfo(host, 0)[0][0]) as free:
        return free.getsockname()[1]
