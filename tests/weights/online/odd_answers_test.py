"""Servers that answer what no server should: one UserError each, in time."""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import random
import time

import pytest

from tests.messages import refused
from tests.weights.conftest import named_error
from tests.weights.online.server import answering, serving
from vit_jax.core.errors import UserError
from vit_jax.weights import online
from vit_jax.weights.online import download, hub

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "WAIT_SECS", (0,))
    monkeypatch.setattr(download, "TIMEOUT_SECS", 0.5)
    monkeypatch.setattr(download, "ANSWER_SECS", 1.0)
    monkeypatch.setattr(download, "SLOWEST_SECS", 0.6)
    monkeypatch.setattr(download, "UNSTATED_BYTES", 2000)
    monkeypatch.setattr(hub, "ANSWER_SECS", 1.5)
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 6


def fetch(answer):
    with answering(lambda path: answer) as url:
        return online.fetch(f"{url}/x.npz")


def redirect(to: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: " + to + b"\r\nContent-Length: 0\r\n\r\n"


def drip(start: bytes = b"", forever: bytes = b"x"):
    return itertools.chain([start], itertools.repeat(forever))


ANSWERS = {
    "nothing": b"",
    "noise": bytes(range(1, 256)),
    "HTTP/0.9": b"hello",
    "no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "206": b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\nhello",
    "304": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "401": b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
    "404": b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    "416": b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n",
    "503": b"HTTP/1.1 503 Later\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n",
    "999": b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    "reason": b"HTTP/1.1 418 \x1b[31m" + b"t" * 9000 + b"\r\nContent-Length: 0\r\n\r\n",
    "length of a word": OK + b"Content-Length: many\r\n\r\nhello",
    "length below 0": OK + b"Content-Length: -5\r\n\r\nhello",
    "length of 5,000 digits": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nhello",
    "length of another script": OK + "Content-Length: ٥\r\n\r\nhello".encode(),
    "two lengths": OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length beyond the disk": OK + b"Content-Length: 99999999999999999\r\n\r\nhello",
    "cut off": OK + b"Content-Length: 9\r\n\r\nhello",
    "cut off in a chunk": CHUNKED + b"9\r\nhello",
    "cut off between chunks": CHUNKED + b"5\r\nhello\r\n",
    "chunk of a word": CHUNKED + b"many\r\nhello\r\n0\r\n\r\n",
    "chunk below 0": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "long header": OK + b"X: " + b"x" * 70000 + b"\r\n\r\n",
    "many headers": OK + b"X: x\r\n" * 200 + b"\r\n",
    "gzip": OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hello"),
    "no end": OK + b"\r\n" + b"x" * 5000,
    "redirected to no address": redirect(b"http://["),
    "to nothing": redirect(b""),
    "to a port": redirect(b"http://127.0.0.1:99999/x.npz"),
    "to NUL": redirect(b"http://127.0.0.1\0/x.npz"),
    "to other than ASCII": redirect("http://münchen.example/x.npz".encode()),
    "to a file": redirect(b"file:///etc/passwd"),
    "to FTP": redirect(b"ftp://127.0.0.1/x.npz"),
    "to what is not encrypted": redirect(b"http://example.org/x.npz"),
    "for ever": redirect(b"/x.npz"),
    "without a place": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    "slow status": drip(),
    "slow header": drip(OK + b"X: "),
    "slow body": drip(OK + b"Content-Length: 9999\r\n\r\n"),
    "slow chunks": drip(CHUNKED, b"1\r\nx\r\n"),
    "slow chunk": drip(CHUNKED + b"ffff\r\n"),
    "slow length of a chunk": drip(CHUNKED + b"1;"),
    "only 100": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "silence": itertools.repeat(b""),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_odd_answer(answer, tmp_path):
    with pytest.raises(UserError) as raised:
        fetch(answer)
    assert "x.npz: " in str(raised.value) and str(raised.value).isprintable()
    assert len(str(raised.value)) < 700
    assert not list((tmp_path / "cache").rglob("x.npz"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_answers_at_random(seed):
    """Each is one UserError, or the bytes that are said."""
    pieces = [
        OK, b"HTTP/1.1 206 P\r\n", b"HTTP/1.1 301 M\r\n", b"Location: ", b"http://127.0.0.1:1/",
        b"Content-Length: ", b"5", b"0", b"Transfer-Encoding: chunked", b"Content-Encoding: br",
        b"ETag: ", b"\r\n", b"\r\n", b"\r\n\r\n", b"hello", b"\0", b"\xff", b"a" * 3000, b'"', b"://",
    ]  # fmt: skip
    draw = random.Random(seed)
    for _ in range(30):
        answer = OK[: draw.choice((0, 17))] + b"".join(draw.choices(pieces, k=draw.randrange(12)))
        try:
            path = fetch(answer).path
        except UserError as error:
            assert "x.npz" in str(error)
        else:
            assert path.read_bytes() in answer


@pytest.mark.parametrize(
    "field",
    [
        {"etag": "a\r\nX: y"},
        {"etag": 5},
        {"sha256": "x"},
        {"sha256": None},
        {"date": 3},
        {"bytes": "5"},
        b"[" * 100000,
        b"\xff",
        b"3",
    ],
)
def test_a_damaged_record_is_not_believed(field, tmp_path):
    body = OK + b'ETag: "v1"\r\nContent-Length: 5\r\n\r\nhello'
    with answering(lambda path: body) as url:
        kept = online.fetch(f"{url}/x.npz")
        record = os.path.join(os.path.dirname(kept.path), download.ABOUT)
        with open(record, "rb") as file:
            about = json.loads(file.read())
        with open(record, "wb") as file:
            file.write(field if isinstance(field, bytes) else json.dumps(about | field).encode())
        assert str(online.fetch(f"{url}/x.npz")) == str(kept)


@pytest.mark.parametrize("record", [b"[" * 100000, b'{"etag": "a\\r\\nX: y"}', b"3", b"\xff"])
def test_a_damaged_record_of_a_part_is_not_believed(record, tmp_path):
    body = OK + b"Content-Length: 5\r\n\r\nhello"
    with answering(lambda path: body) as url:
        folder = os.path.dirname(online.fetch(f"{url}/x.npz").path)
        os.remove(os.path.join(folder, "x.npz"))
        for name, data in ((".x.npz.part", b"other"), (".x.npz.part.json", record)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        assert online.fetch(f"{url}/x.npz").path.read_bytes() == b"hello"


def test_the_account_is_not_told_to_where_a_redirection_leads(tmp_path):
    first, second = [], []
    with (
        answering(lambda path: ok(b"hello"), second) as other,
        answering(lambda path: redirect(f"{other}/y".encode()), first) as url,
    ):
        account = {"Authorization": "Bearer secret"}
        download._download(f"{url}/x.npz", tmp_path / "x.npz", "x.npz", None, account)
    assert (tmp_path / "x.npz").read_bytes() == b"hello"
    assert "Authorization: Bearer secret" in first
    assert second and not [line for line in second if "secret" in line]


def test_the_scheme_may_be_written_in_capitals():
    with answering(lambda path: ok(b"hello")) as url:
        name = f"{url.replace('http', 'HTTP')}/x.npz"
        assert online.fetch(name).path.read_bytes() == b"hello"


@pytest.mark.parametrize(
    "span", ["bytes 2-4/5", "bytes 0-4/5", "bytes 3-4", "bytes 3-4/9", "bytes 3-4/*", "words", ""]
)
def test_a_rest_that_is_not_the_rest_is_fetched_anew(span):
    head = f"HTTP/1.1 206 P\r\nContent-Range: {span}\r\n".encode()
    whole = OK + b'ETag: "v1"\r\nContent-Length: 5\r\n\r\n'
    answers = [whole + b"hel", head + b"Content-Length: 2\r\n\r\nXY", whole + b"hello"]
    with answering(lambda path: answers.pop(0)) as url:
        with refused("x.npz"):
            online.fetch(f"{url}/x.npz")
        if answers:
            assert online.fetch(f"{url}/x.npz").path.read_bytes() == b"hello"


def test_the_rest_of_another_file_is_not_joined():
    """From a cache that ignores If-Range."""
    head = b'HTTP/1.1 206 P\r\nETag: "v2"\r\nContent-Range: bytes 3-4/5\r\n'
    whole = OK + b'ETag: "v%d"\r\nContent-Length: 5\r\n\r\n'
    answers = [whole % 1 + b"hel", head + b"Content-Length: 2\r\n\r\nLD", whole % 2 + b"WORLD"]
    with answering(lambda path: answers.pop(0)) as url:
        with contextlib.suppress(UserError):
            online.fetch(f"{url}/x.npz")
        if answers:
            assert online.fetch(f"{url}/x.npz").path.read_bytes() == b"WORLD"
    assert not answers


@pytest.mark.parametrize(
    ("cut_after", "killed_in", "call"),
    [(None, "write_file", 1), (7, "ThreadPool", 1)],
    ids=["before about.json", "before a new body"],
)
def test_a_download_killed_between_files_mixes_no_versions(cut_after, killed_in, call, monkeypatch):
    """The bytes of one version never go by the hash or ETag of another of the same size."""
    old, new = b"hello" * 9, b"WORLD" * 9
    calls, real = itertools.count(), getattr(download, killed_in)

    def kill(*arguments):
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(download, "WAIT_SECS", ())
    with serving() as server:
        name = f"{server.url}/x.npz"
        server.files["x.npz"], server.cut_after = old, cut_after
        with contextlib.suppress(UserError):
            online.fetch(name)
        server.files["x.npz"] = new
        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
            patch.setattr(download, killed_in, kill)
            online.fetch(name)
        with refused("another file"):
            online.fetch(f"{name}#sha256={hashlib.sha256(old).hexdigest()}")
        assert online.fetch(name).path.read_bytes() == new


def test_a_full_disk_is_named():
    resource = pytest.importorskip("resource")
    body = OK + b"Content-Length: 90000\r\n\r\n" + b"x" * 90000
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with answering(lambda path: body) as url:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, unlimited[1]))
        try:
            with named_error("VIT_JAX_CACHE"):
                online.fetch(f"{url}/x.npz")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert online.fetch(f"{url}/x.npz").path.read_bytes() == b"x" * 90000


def test_a_proxy_of_the_environment_is_asked(monkeypatch):
    asked = []

    def answer(path):
        asked.append(path)
        return OK + b"Content-Length: 5\r\n\r\nhello"

    with answering(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy.replace("//", "//me:secret%21@"))
        monkeypatch.setenv("no_proxy", "example.org")
        assert online.fetch("http://localhost:1/x.npz").path.read_bytes() == b"hello"
        monkeypatch.setenv("no_proxy", "localhost")
        with refused("y.npz"):
            online.fetch("http://localhost:1/y.npz")
    assert asked == ["http://localhost:1/x.npz"]


def tree(depth):
    return b"[" * depth + b"]" * depth


HUB = {
    "no commit": b'{"id": "timm/toy"}',
    "empty": b'{"id": "timm/toy", "sha": ""}',
    "null": b'{"id": "timm/toy", "sha": null}',
    "a branch": b'{"id": "timm/toy", "sha": "main"}',
    "a path": b'{"id": "timm/toy", "sha": "../../../x"}',
    "a list": b'{"id": "timm/toy", "sha": ["a"]}',
    "a number": b'{"id": "timm/toy", "sha": 5}',
    "capitals": json.dumps({"id": "timm/toy", "sha": "A" * 40}).encode(),
    "5,000 letters": json.dumps({"id": "timm/toy", "sha": "a" * 5000}).encode(),
    "no object": b"[1, 2]",
    "no JSON": b"<html>",
    "other than UTF-8": b'{"sha": "\xff"}',
    "deep": b'{"id": "timm/toy", "sha": ' + tree(100000) + b"}",
    "odd siblings": json.dumps(
        {"id": "timm/toy", "sha": COMMIT, "siblings": [{"rfilename": 3}, 5, None, {}]}
    ).encode(),
}


def ok(body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    return OK + f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("about", HUB.values(), ids=HUB)
def test_an_odd_hub(about, point_hub):
    missing = f"HTTP/1.1 404 No\r\nX-Error-Code: EntryNotFound\r\nX-Repo-Commit: {COMMIT}\r\n"
    missing += "Content-Length: 0\r\n\r\n"
    with answering(lambda p: ok(about) if p.startswith("/api/") else missing.encode()) as url:
        point_hub(url)
        with named_error("timm:toy") as raised:
            online.fetch("timm:toy")
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"../../../x"', "X_Repo_Commit": COMMIT},
        {"ETag": '"/x"', "X_Repo_Commit": COMMIT},
        {"ETag": f'"{"e" * 5000}"', "X_Repo_Commit": COMMIT},
        {"ETag": '".."', "X_Repo_Commit": COMMIT},
        {"X_Repo_Commit": COMMIT},
        {"ETag": '"e"', "X_Repo_Commit": "../../../x"},
        {"ETag": '"e"', "X_Repo_Commit": "b" * 40},
        {"ETag": '"e"'},
        {"ETag": '"e"', "X_Repo_Commit": COMMIT, "X_Linked_Size": "99999999999999999"},
        {"ETag": '"e"', "X_Repo_Commit": COMMIT, "Location": "file:///etc/passwd"},
    ],
    ids=str,
)
def test_an_odd_file_of_a_hub(headers, point_hub, tmp_path):
    about = json.dumps({"id": "timm/toy", "sha": COMMIT}).encode()
    with answering(lambda p: ok(*((about,) if "/api/" in p else (b"{}",)), **headers)) as url:
        point_hub(url)
        with named_error("timm:toy"):
            online.fetch("timm:toy")
    assert {path.name for path in tmp_path.iterdir()} <= {"hub", "cache"}


@pytest.mark.parametrize(
    "answer", [drip(OK), drip(OK + b"Content-Length: 9999\r\n\r\n"), itertools.repeat(b"")]
)
def test_a_slow_hub(answer, point_hub):
    with answering(lambda path: answer) as url:
        point_hub(url)
        with named_error("timm:toy", "slow"):
            online.fetch("timm:toy")
