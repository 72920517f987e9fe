"""An emulator of Google Cloud Storage on 127.0.0.1, with its failures, for tests.

    with Emulator(folder) as storage:
        subprocess.run(..., env=os.environ | storage.env)
        storage.faults.append(Fault("upload .*metrics", status=503, times=2))

It speaks what five libraries speak to the real one: the JSON API (objects: get, list, insert by
media, multipart and resumable upload, delete, rewrite, copy, compose; buckets: get), reads by the
XML API, ranges, and preconditions on generations. All but TensorFlow can be given an address;
TensorFlow reaches it as a proxy, whose TLS certificate is made for the test: the emulator answers
CONNECT for any host itself.

gcp-storage-emulator of the package index has neither failures nor TLS.
"""

import base64
import contextlib
import dataclasses
import datetime
import email
import http.server
import json
import re
import ssl
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c
import trustme

PAGE = 1000  # names in an answer to "list", as Google's
OBJECT = re.compile(r"(?:/download|/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]*))?(?:/(.*))?")


class Stored(NamedTuple):
    """An object; a replacement is another one."""

    data: bytes
    generation: int
    time: float

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()


@dataclasses.dataclass
class Fault:
    """A failure of the next `times` requests that match, after `skip` of them.

    Attributes:
      of: pattern of "ACTION NAME", e.g. "upload .*metrics.jsonl"; the actions are read, stat, list,
        upload, delete, copy, compose, bucket.
      status: of the answer; None: what is asked for is done.
      wait_secs: before the answer.
      cut: the connection is closed halfway: before an upload is stored, in the middle of a read.
    """

    of: str
    status: int | None = None
    times: int = 1
    skip: int = 0
    wait_secs: float = 0
    cut: bool = False
    met: int = 0


class Emulator:
    """The server, in threads of this process; see the top of the file.

    Attributes:
      objects: bucket -> name -> Stored.
      faults: those to come; ones that are used up stay, with `met` of them.
      private: prefix of objects that are read with a token only.
      list_lag_secs: how long lists show what was there before.
      log: "ACTION NAME" of every request.
      unknown: requests that it cannot answer, which should be none.
      env: variables with which a process finds it.
    """

    def __init__(self, folder: Path, bucket: str = "bucket"):
        self.objects: dict[str, dict[str, Stored]] = {bucket: {}}
        self.faults: list[Fault] = []
        self.list_lag_secs = 0.0
        self.private = ""
        self.log: list[str] = []
        self.unknown: list[str] = []
        self.lock = threading.Lock()
        self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
        self._generation = 1_000_000
        self._past: dict[tuple[str, str], list[tuple[float, bool]]] = {}  # when made and deleted
        authority = trustme.CA()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("*.googleapis.com", "googleapis.com").configure_cert(self.tls)
        certificate = folder / "authority.pem"
        authority.cert_pem.write_to_path(certificate)
        handler = type("Handler", (_Handler,), {"emulator": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.env = {
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",  # TensorFlow, TensorStore
            "https_proxy": self.url,  # TensorFlow; nothing else leaves this machine either
            "no_proxy": "127.0.0.1,localhost",
            "CURL_CA_BUNDLE": str(certificate),
            "NO_GCE_CHECK": "true",
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "STORAGE_EMULATOR_HOST": self.url,  # google-cloud-storage, gcsfs
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,  # array_record
        }

    def __enter__(self) -> "Emulator":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        """Names of the objects that are there, in order."""
        with self.lock:
            return sorted(name for name in self.objects[bucket] if name.startswith(prefix))

    def read(self, name: str, bucket: str = "bucket") -> bytes:
        return self.objects[bucket][name].data

    def upload(self, folder: Path, prefix: str, bucket: str = "bucket") -> None:
        """Stores the files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                name = f"{prefix}/{path.relative_to(folder).as_posix()}"
                self.put(bucket, name, path.read_bytes())

    def unmet(self) -> list[str]:
        """The requests of faults that no process has met."""
        return [fault.of for fault in self.faults if fault.met <= fault.skip]

    def counts(self) -> Counter[str]:
        """Numbers of requests by action."""
        return Counter(entry.partition(" ")[0] for entry in self.log)

    def fault(self, action: str, name: str) -> Fault | None:
        """The failure that this request meets; writes the request down."""
        request = f"{action} {name}"
        with self.lock:
            self.log.append(request)
            for fault in self.faults:
                if re.match(fault.of, request) and fault.met < fault.skip + fault.times:
                    fault.met += 1
                    if fault.met > fault.skip:
                        return fault
        return None

    def put(self, bucket: str, name: str, data: bytes) -> Stored:
        with self.lock:
            self._generation += 1
            stored = Stored(data, self._generation, time.time())
            if name not in self.objects[bucket]:
                self._past.setdefault((bucket, name), []).append((stored.time, True))
            self.objects[bucket][name] = stored
            return stored

    def delete(self, bucket: str, name: str) -> None:
        with self.lock:
            del self.objects[bucket][name]
            self._past.setdefault((bucket, name), []).append((time.time(), False))

    def listed(self, bucket: str) -> list[str]:
        """Names as lists show them: with the lag."""
        seen_until = time.time() - self.list_lag_secs
        with self.lock:
            if not self.list_lag_secs:
                return sorted(self.objects[bucket])
            names = []
            for (of, name), changes in self._past.items():
                there = [made for when, made in changes if when <= seen_until]
                if of == bucket and there and there[-1]:
                    names.append(name)
            return sorted(names)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A killed client is no news."""


class _Failed(Exception):
    """The answer is this error."""

    def __init__(self, status: int, message: str = "", headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class _Handler(http.server.BaseHTTPRequestHandler):
    emulator: Emulator
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        pass

    def do_CONNECT(self) -> None:
        """Ends the tunnel's TLS here; requests of the tunnel then arrive as any others."""
        self.send_response_only(200)
        self.end_headers()
        self.wfile.flush()
        self.connection = self.emulator.tls.wrap_socket(self.connection, server_side=True)
        self.setup_tunnel()

    def setup_tunnel(self) -> None:
        self.request = self.connection
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", -1)
        self.close_connection = False

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        self.body = self._body()
        try:
            self._dispatch(url.path)
        except _Failed as error:
            text = json.dumps({"error": {"code": error.status, "message": str(error)}})
            self._answer(text.encode(), error.status, error.headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # the base class has answered
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _dispatch(self, path: str) -> None:
        if (of := re.fullmatch(r"/storage/v1/b/([^/]+)", path)) is not None:
            self._meet("bucket", of[1])
            self._bucket(of[1])
            self._json({"kind": "storage#bucket", "name": of[1], "id": of[1], "location": "US"})
        elif (of := OBJECT.fullmatch(path)) is not None:
            bucket, name, rest = (of[1], unquote(of[2] or ""), of[3])
            self._bucket(bucket)
            if path.startswith("/upload") or (self.command == "POST" and not name):
                self._upload(bucket)
            elif not name:
                self._list(bucket)
            elif rest:
                self._combine(bucket, name, rest)
            elif self.command == "DELETE":
                self._meet("delete", name)
                self._checked(bucket, name)
                self.emulator.delete(bucket, name)
                self._answer(b"", 204)
            elif self.query.get("alt") == "media" or path.startswith("/download"):
                self._read(bucket, name)
            else:
                self._meet("stat", name)
                self._json(self._resource(bucket, name, self._checked(bucket, name)))
        elif path == "/token":
            self._json({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})
        elif (of := re.fullmatch(r"/([^/]+)/(.+)", path)) and self.command in ("GET", "HEAD"):
            self._bucket(of[1])
            self._read(of[1], unquote(of[2]))
        else:
            self.emulator.unknown.append(f"{self.command} {self.path}")
            raise _Failed(501, "not emulated")

    def _meet(self, action: str, name: str) -> Fault | None:
        """Fails as the request's fault says; returns one that is to be done halfway."""
        fault = self.emulator.fault(action, name)
        if fault is None:
            return None
        time.sleep(fault.wait_secs)
        if fault.status is not None:
            raise _Failed(fault.status, "a fault of the test")
        if fault.cut and action != "read":
            self.close_connection = True
            self.connection.close()
            raise ConnectionAbortedError
        return fault

    def _bucket(self, bucket: str) -> dict[str, Stored]:
        if bucket not in self.emulator.objects:
            raise _Failed(404, "The specified bucket does not exist.")
        return self.emulator.objects[bucket]

    def _checked(self, bucket: str, name: str, *, new: bool = False) -> Stored | None:
        """The object; the answer is an error where it is missing or a precondition fails."""
        stored = self._bucket(bucket).get(name)
        generation = stored.generation if stored else 0
        if int(self.query.get("ifGenerationMatch", generation)) != generation:
            raise _Failed(412, "conditionNotMet")
        if int(self.query.get("ifGenerationNotMatch", -1)) == generation:
            raise _Failed(304)
        if stored is None and not new:
            raise _Failed(404, f"No such object: {bucket}/{name}")
        return stored

    def _read(self, bucket: str, name: str) -> None:
        fault = self._meet("read", name)
        private = self.emulator.private
        if private and name.startswith(private) and "Authorization" not in self.headers:
            raise _Failed(403, "Anonymous caller does not have storage.objects.get access")
        stored = self._checked(bucket, name)
        first, last, status = 0, len(stored.data), 200
        headers = {
            "x-goog-generation": str(stored.generation),
            "x-goog-hash": f"crc32c={stored.crc32c}",
            "Content-Type": "application/octet-stream",
        }
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            if asked[1]:
                first = int(asked[1])
                last = min(int(asked[2]) + 1, last) if asked[2] else last
            else:
                first = max(0, last - int(asked[2]))
            if first >= len(stored.data):
                raise _Failed(416, headers={"Content-Range": f"bytes */{len(stored.data)}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(stored.data)}"
        self._answer(stored.data[first:last], status, headers, cut=bool(fault and fault.cut))

    def _list(self, bucket: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        self._meet("list", prefix)
        begin = max(self.query.get("startOffset", ""), unquote(self.query.get("pageToken", "")))
        end = self.query.get("endOffset")
        items, folders, token = [], [], None
        for name in self.emulator.listed(bucket):
            if not name.startswith(prefix) or name < begin or (end and name >= end):
                continue
            folder = None
            if delimiter and delimiter in name[len(prefix) :]:
                folder = prefix + name[len(prefix) :].split(delimiter)[0] + delimiter
                if folder in folders:
                    continue
            if len(items) + len(folders) == int(self.query.get("maxResults", PAGE)):
                token = quote(name)
                break
            if folder:
                folders.append(folder)
            else:
                stored = self._bucket(bucket).get(name) or Stored(b"", 1, 0)
                items.append(self._resource(bucket, name, stored))
        answer = {"kind": "storage#objects", "items": items, "prefixes": folders}
        self._json(answer | ({"nextPageToken": token} if token else {}))

    def _upload(self, bucket: str) -> None:
        kind, session = self.query.get("uploadType", "media"), self.query.get("upload_id")
        if session:
            self._continue(session)
        elif kind == "resumable":
            name = self.query.get("name") or json.loads(self.body)["name"]
            self._meet("start", name)
            session = f"{len(self.emulator.uploads)}-{time.monotonic_ns()}"
            self.emulator.uploads[session] = (bucket, name, self.query, bytearray())
            scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
            place = f"{scheme}://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o"
            self._answer(
                b"", 200, {"Location": f"{place}?uploadType=resumable&upload_id={session}"}
            )
        elif kind == "multipart":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            meta, media = email.message_from_bytes(head + self.body).get_payload()
            name = self.query.get("name") or json.loads(meta.get_payload())["name"]
            # The parser drops one line end; the payload is bytes whatever it says.
            begin = self.body.index(b"\r\n\r\n", self.body.index(meta.get_payload().encode())) + 4
            end = self.body.rindex(b"\r\n--")
            del media
            self._store(bucket, name, self.body[begin:end])
        else:
            self._store(bucket, self.query["name"], self.body)

    def _continue(self, session: str) -> None:
        """A part of a resumable upload, or the question how much has arrived."""
        if session not in self.emulator.uploads:
            raise _Failed(404, "no such upload")
        bucket, name, query, data = self.emulator.uploads[session]
        part = re.fullmatch(
            r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes */*")
        )
        if part[1]:
            self._meet("upload", name)
            del data[int(part[1]) :]
        data += self.body
        missing = part[3] == "*" or len(data) < int(part[3])
        if missing and "Content-Range" in self.headers:
            self._answer(b"", 308, {"Range": f"bytes=0-{len(data) - 1}"} if data else {})
            return
        self.query = query
        self._store(bucket, name, bytes(data), met=bool(part[1]))

    def _store(self, bucket: str, name: str, data: bytes, *, met: bool = False) -> None:
        if not met:
            self._meet("upload", name)
        self._checked(bucket, name, new=True)
        self._json(self._resource(bucket, name, self.emulator.put(bucket, name, data)))

    def _combine(self, bucket: str, name: str, rest: str) -> None:
        if rest == "compose":
            self._meet("compose", name)
            parts = [self._bucket(bucket).get(s["name"]) for s in self._asked()["sourceObjects"]]
            if None in parts:
                raise _Failed(404, "a source is missing")
            self._store(bucket, name, b"".join(p.data for p in parts), met=True)
            return
        to = re.fullmatch(r"(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)", rest)
        target = unquote(to[3])
        self._meet("copy", f"{name} {target}")
        if name not in self._bucket(bucket):
            raise _Failed(404, f"No such object: {bucket}/{name}")
        stored = self.emulator.put(to[2], target, self._bucket(bucket)[name].data)
        resource, size = self._resource(to[2], target, stored), str(len(stored.data))
        whole = {"done": True, "objectSize": size, "totalBytesRewritten": size}
        self._json(resource if to[1] == "copyTo" else whole | {"resource": resource})

    def _asked(self) -> dict:
        return json.loads(self.body or b"{}")

    def _resource(self, bucket: str, name: str, stored: Stored) -> dict:
        utc = datetime.datetime.fromtimestamp(stored.time, datetime.UTC)
        stamp = utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{stored.generation}",
            "bucket": bucket,
            "name": name,
            "generation": str(stored.generation),
            "metageneration": "1",
            "size": str(len(stored.data)),
            "crc32c": stored.crc32c,
            "timeCreated": stamp,
            "updated": stamp,
        }

    def _json(self, document: dict) -> None:
        self._answer(json.dumps(document).encode(), 200, {"Content-Type": "application/json"})

    def _answer(
        self, data: bytes, status: int, headers: dict[str, str] | None = None, cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.close()
