"""The server: one page, its examples, and the answers to images; nothing is written to disk.

Other pages in the same browser are kept out: requests are answered only under names that a stranger
cannot point at this machine (DNS rebinding), only from the page itself, and never with CORS.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vit_jax.core.errors import NonFiniteError, UserError, describe_error
from vit_jax.tools.demo.examples import Sample

MAX_BYTES = 20 * 2**20  # of an image file
MAX_WAITING = 8  # images that are being looked at
MAX_CONNECTIONS = 32  # at once; REQUEST_SECS and ANSWER_SECS bound how long each lasts
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
    page: str  # HTML
    examples: Sequence[Sample]  # image files, at /examples/0 and so on
    # Function of an image file's bytes to the JSON answer; UserError for a bad file.
    look: Callable[[bytes], dict]


class Server(http.server.ThreadingHTTPServer):
    """A server that takes its port at once, so that a wrong one is told before a model is read."""

    daemon_threads = True
    request_queue_size = 1024  # of http.server 5; clients behind a full queue may wait for ever
    site: Site  # set before `serve_forever`

    def __init__(self, host: str, port: int) -> None:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(address[0]), int(address[1])), Handler)
        except OSError as error:
            rule = f"cannot be listened at: {describe_error(error)}."
            cure = "--port=0 takes a free port."
            raise UserError(rule, field=f"--host={host} --port", value=port, cure=cure) from error
        self.host, self.waiting = host, threading.BoundedSemaphore(MAX_WAITING)
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def server_bind(self) -> None:
        """Binds, without asking the network what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a new thread, of at most MAX_CONNECTIONS; others are closed."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that go away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def is_public(self) -> bool:
        return not ipaddress.ip_address(self.server_name).is_loopback

    @property
    def url(self) -> str:
        """An address of the page on this machine."""
        name = self.server_name
        if ipaddress.ip_address(name).is_unspecified:
            name = "::1" if self.address_family == socket.AF_INET6 else "127.0.0.1"
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    def knows(self, host: str) -> bool:
        """Returns whether a request for HOST or HOST:PORT is meant for this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            public = [socket.gethostname().lower()] if self.is_public else []
            return name in ("localhost", self.host.lower(), *public)
        return address.is_loopback or self.is_public


class _Receiving(io.RawIOBase):
    """Bytes that a client sends before a deadline."""

    def __init__(self, connection: socket.socket):
        self._connection, self._deadline = connection, time.monotonic() + REQUEST_SECS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "vit_jax", ""

    def setup(self) -> None:
        """Reads with a deadline for all of the request, not for each of its bytes."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Receiving(self.connection))

    def do_GET(self) -> None:
        self._answer(self._page_or_example)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._explanation)

    def _answer(self, content: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._check_sender()
            kind, body = content()
        except _Refused as error:
            self.send_error(error.status, str(error))
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._drain()
        else:
            self._send(HTTPStatus.OK, kind, body)

    def _check_sender(self) -> None:
        """Refuses requests under names that are not this server's, and from other sites."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.knows(host):
            message = f"The demo does not answer to this name: {self.server.url}"
            raise _Refused(HTTPStatus.FORBIDDEN, message)
        if origin is not None and urlsplit(origin).netloc != host:
            raise _Refused(HTTPStatus.FORBIDDEN, "The demo does not answer to other sites.")

    def _page_or_example(self) -> tuple[str, bytes]:
        path, site = urlsplit(self.path).path, self.server.site
        examples = {f"/examples/{k}": each.data for k, each in enumerate(site.examples)}
        if path == "/":
            return HTML, site.page.encode()
        if path in examples:
            return UNKNOWN, examples[path]
        raise _Refused(HTTPStatus.NOT_FOUND, "There is no such page. The demo’s is /.")

    def _explanation(self) -> tuple[str, bytes]:
        if urlsplit(self.path).path != "/look":
            raise _Refused(HTTPStatus.NOT_FOUND, "There is no such page. Images go to /look.")
        if self.headers.get_content_type() != UNKNOWN:
            message = f"Send the image as Content-Type: {UNKNOWN}."
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        data = self._body()
        if not self.server.waiting.acquire(blocking=False):
            message = "Other images are being looked at: try again."
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, message)
        try:
            return JSON, json.dumps(self.server.site.look(data)).encode()
        except UserError as error:
            raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        except NonFiniteError as error:
            raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
        except Exception as error:
            traceback.print_exc()
            message = "This image met a bug: what it was is printed where the demo was started."
            raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR, message) from error
        finally:
            self.server.waiting.release()

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "The request does not say how long it is.")
        if len(length) > 18 or int(length) > MAX_BYTES:
            message = f"The file is larger than {MAX_BYTES // 2**20} MiB. Make the image smaller."
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "The image came only in part: send it again.")
        return data

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends a message as JSON; http.server calls it too."""
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
        """Logs nothing."""
