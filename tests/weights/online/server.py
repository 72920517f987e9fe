"""A server on loopback: the hub's API, and objects as Google's storage serves them."""

import base64
import hashlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import google_crc32c


class Served:
    def __init__(self):
        self.files: dict[str, bytes] = {}  # of the repository "timm/toy", or "bucket/object"
        self.commit = "a" * 40
        self.status: int | None = None
        self.cut_after: int | None = None
        self.wrong_hash = False
        self.asked: list[str] = []
        self.url = ""


@contextmanager
def serving() -> Iterator[Served]:
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer(False)

        def do_GET(self):
            self.answer(True)

        def refuse(self, status, code=None):
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("x-repo-commit", served.commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, body):
            served.asked.append(f"{self.command} {self.path}")
            path = self.path.strip("/")
            if served.status:
                self.refuse(served.status, "GatedRepo" if served.status == 403 else None)
            elif path.startswith("api/models/"):
                self.about(path.removeprefix("api/models/"))
            elif "/resolve/" in path:
                self.send(path.partition("/resolve/")[2].split("/", 1)[1], body)
            else:
                self.send(path, body)

        def about(self, rest):
            repository, _, revision = rest.partition("/revision/")
            if repository != "timm/toy":
                self.refuse(404, "RepoNotFound")
            elif revision not in ("", "main", "v1", served.commit):
                self.refuse(404, "RevisionNotFound")
            else:
                names = [{"rfilename": name} for name in served.files]
                about = {"id": repository, "sha": served.commit, "siblings": names}
                data = json.dumps(about).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def send(self, name, body):
            data = served.files.get(name)
            if data is None:
                self.refuse(404, "EntryNotFound")
                return
            digest = "0" * 64 if served.wrong_hash else hashlib.sha256(data).hexdigest()
            etag, start = f'"{digest}"', 0
            if self.headers["If-None-Match"] == etag:
                self.refuse(304)
                return
            if self.headers["Range"] and self.headers["If-Range"] == etag:
                start = int(self.headers["Range"][6:-1])
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("ETag", etag)
            self.send_header("x-repo-commit", served.commit)
            self.send_header("x-linked-size", str(len(data)))
            self.send_header("x-goog-generation", "7")
            crc = google_crc32c.Checksum(b"other" if served.wrong_hash else data).digest()
            self.send_header("x-goog-hash", f"crc32c={base64.b64encode(crc).decode()}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if body:
                part, served.cut_after = served.cut_after, None
                self.wfile.write(data[start:] if part is None else data[start : start + part])
                self.close_connection = part is not None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()


@contextmanager
def answering(
    answer: Callable[[str], bytes | Iterable[bytes]], headers: list[str] | None = None
) -> Iterator[str]:
    """The address of a server that sends what `answer` says of a path, byte for byte.

    Pieces come 50 ms after one another, for at most 10 seconds. `headers` gets those of requests.
    """
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            path = self.rfile.readline(65537).split()[1].decode()
            while line := self.rfile.readline(65537).strip():
                if headers is not None:
                    headers.append(line.decode())
            pieces = answer(path)
            with suppress(OSError):
                for piece in [pieces] if isinstance(pieces, bytes) else islice(pieces, 200):
                    self.wfile.write(piece)
                    if ended.wait(0 if isinstance(pieces, bytes) else 0.05):
                        break

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
