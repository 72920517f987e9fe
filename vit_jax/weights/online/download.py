"""Files on the web and in public buckets of Google's storage, in a cache of this project's own.

    CACHE/weights/<hash of the address>/B_16.npz
                                        about.json    address, ETag, generation, SHA-256, date

A file that is there is asked for again by its ETag, and kept if it is still the same. Where the
server gives no answer it is used as it is, and a line on stderr says so. A pinned name asks only if
the file is not there.

What has arrived of a file that is not whole stays in .NAME.part, with its ETag, by which a server
goes on with the same file and no other. Checks are those that the server states: the length, and of
Google's storage the CRC-32C. urllib3 speaks HTTP.
"""

import base64
import contextlib
import datetime
import errno
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import filelock
import google_crc32c
import urllib3

from vit_jax.core import __version__
from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir, parse_json, write_file
from vit_jax.core.screen import Screen, format_bytes

T = TypeVar("T")
STORAGE = "storage.googleapis.com"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT_SECS = 20.0  # for a connection, and for a byte
ANSWER_SECS = 60.0  # until a file begins to come, redirections included
SLOWEST_SECS, SLOWEST_BYTES = 30.0, 30 * 2**10  # a server that sends less is given up
WAIT_SECS = (1, 3, 8)  # before the second, third, ... attempt
UNSTATED_BYTES = 4 * 2**30  # of a file whose length the server does not state
# Errors are raised as they are: `_download` tries again, and goes on with what has arrived.
_RETRIES = urllib3.Retry(
    None, connect=False, read=False, other=False, redirect=10, respect_retry_after_header=False
)
_READ_BYTES = 2**20
_ETAG = re.compile(r"[\x21-\x7e]{1,500}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})")
ABOUT = "about.json"
EMULATOR = "STORAGE_EMULATOR_HOST"  # as in Google's own libraries: http://localhost:4443
_READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
# What the disk says, not the network.
_DISK: tuple[int, ...] = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class Kept(NamedTuple):
    """A file in the cache: its path, the SHA-256 and ETag of its bytes, when it came."""

    path: Path
    sha256: str
    etag: str | None
    date: str


class Unreachable(UserError):
    """No answer from the server, or none that it meant."""


class _BrokenOff(Unreachable):
    """An attempt that another one may follow."""


class Refused(UserError):
    """The server gives it to nobody, or to nobody without an account."""


# By status; with others it is used as it is in the cache.
_KINDS: dict[int, type[UserError]] = {
    **dict.fromkeys((408, 429, 500, 502, 503, 504), _BrokenOff),
    **dict.fromkeys((401, 403), Refused),
    **dict.fromkeys((404, 410), UserError),
}


def fetch(url: str, sha256: str | None, *, name: str) -> Kept:
    """The file at an address; `name` is what messages call it."""
    folder = cache_dir() / "weights" / hashlib.sha256(url.encode()).hexdigest()[:16]
    file = folder / re.sub(r"[^\w.-]", "_", Path(unquote(urlsplit(url).path)).name)[-100:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may be fetching it; then it is there afterwards.
        with filelock.FileLock(folder / ".lock"):
            kept = _fetched(url, file, sha256, name)
    except OSError as error:
        rule = f"cannot be kept in {folder}, or VIT_JAX_CACHE: {error.strerror or error}."
        raise UserError(rule, field=name) from error
    if sha256 is not None and kept.sha256 != sha256:
        raise UserError(f"{name} has the SHA-256 {kept.sha256}: another file is asked for.")
    return kept


def _fetched(url: str, file: Path, sha256: str | None, name: str) -> Kept:
    there = _kept(file)
    if there and sha256 == there.sha256:
        return there
    etag = there.etag if there else None
    try:
        try:
            new = _download(_address(url), file, name, etag, {})
        except Refused:  # so it is not public
            if not (account := _account(url)):
                raise
            new = _download(_address(url), file, name, etag, account)
    except Unreachable as error:
        if not there or sha256:
            raise
        print(f"Notice: {error}\nThe copy of {there.date} is used.", file=sys.stderr)
        return there
    if new is None:
        assert there is not None
        return there
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"url": url, **new, "bytes": file.stat().st_size, "date": date}
    write_file(file.with_name(ABOUT), json.dumps(about, indent=2) + "\n")
    return Kept(file, about["sha256"], about["etag"], date)


def _kept(file: Path) -> Kept | None:
    """The file as its record says; None if it is not there, or not as it was kept."""
    try:
        about = parse_json(file.with_name(ABOUT).read_bytes())
        date = datetime.datetime.fromisoformat(about["date"]).isoformat()
        is_whole = re.fullmatch(r"[0-9a-f]{64}", about["sha256"]) is not None
        if is_whole and about["bytes"] == file.stat().st_size:
            return Kept(file, about["sha256"], _sendable(about["etag"]), date)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _account(url: str) -> dict[str, str]:
    """The header that names this machine's account to Google's storage; none without one."""
    if urlsplit(url).hostname != STORAGE:
        return {}
    try:
        import google.auth
        import google.auth.transport.requests as transport
    except ImportError:  # extra "gcs"
        return {}
    try:
        account, _ = google.auth.default(scopes=[_READ_ONLY])
        account.refresh(transport.Request())
    except google.auth.exceptions.GoogleAuthError:
        return {}
    return {"Authorization": f"Bearer {account.token}"}


def _address(url: str) -> str:
    """The address to ask: an emulator of Google's storage where the environment names one."""
    emulator = os.environ.get(EMULATOR)
    if emulator is None or urlsplit(url).hostname != STORAGE:
        return url
    host = emulator if "://" in emulator else f"http://{emulator}"
    return host.rstrip("/") + urlsplit(url).path


def _download(
    url: str, file: Path, name: str, etag: str | None, account: dict[str, str]
) -> dict[str, Any] | None:
    """Fetches a file, all of it or not at all, and says what is known of it.

    None: it is still what `etag` names. The caller has locked the file.
    """
    for wait_secs in (*WAIT_SECS, None):
        try:
            return _attempt(url, _Part(file), name, etag, account)
        except UserError as error:
            if wait_secs is None or not isinstance(error, _BrokenOff):
                raise type(error)(f"{name}: {error}") from error
            time.sleep(wait_secs)
    raise AssertionError


def _attempt(
    url: str, part: "_Part", name: str, etag: str | None, account: dict[str, str]
) -> dict[str, Any] | None:
    headers = {
        "User-Agent": f"vit_jax/{__version__}",
        "Accept-Encoding": "identity",  # the stored bytes, of which the checksums are
        **account,
        **part.headers(etag),
    }
    how: dict[str, Any] = {"retries": _RETRIES, "preload_content": False, "timeout": TIMEOUT_SECS}
    try:
        with _connections(url) as connections:
            request = connections.request
            answer = within(ANSWER_SECS, lambda: request("GET", url, headers=headers, **how))
            if answer.status == 304 and "If-None-Match" in headers:
                return None
            part.receive(answer, name)
    except UserError:
        raise
    except multiprocessing.TimeoutError as error:
        raise _odd("is too slow") from error
    except Exception as error:  # of urllib3, http.client, ssl, and of addresses
        if isinstance(error, OSError) and (error.filename or error.errno in _DISK):
            raise
        # A redirection to what is not an address will be the same the next time.
        kind = Unreachable if isinstance(error, ValueError) else _BrokenOff
        said = f"{type(error).__name__}: {shown(error)}"
        rule = f"no answer from the server, or not all of it ({said})."
        raise kind(rule, cure="Start again: it goes on where it broke off.") from error
    return part.finish(answer.headers)


def within(secs: float, call: Callable[[], T]) -> T:
    """The result of a call. multiprocessing.TimeoutError if it takes longer.

    Timeouts of sockets, which are those of HTTP libraries, begin anew with every byte.
    """
    with ThreadPool(1) as thread:  # which does not wait for it at its end, nor does the program
        return thread.apply_async(call).get(secs)


def _connections(url: str) -> urllib3.PoolManager:
    start, connections = urllib3.util.parse_url(url), urllib3.PoolManager()
    proxy = getproxies().get(start.scheme or "")
    if proxy and not proxy_bypass(start.netloc or ""):
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        account = unquote(urllib3.util.parse_url(proxy).auth or "")
        sent = urllib3.make_headers(proxy_basic_auth=account) if account else None
        connections = urllib3.ProxyManager(proxy, proxy_headers=sent)
    connect = connections.connection_from_host

    def checked(host: str | None, port: Any = None, scheme: Any = "http", *more: Any) -> Any:
        plain = start.scheme == "http" and host in (start.host, *LOOPBACK)
        if scheme != "https" and not (scheme == "http" and plain):
            raise UserError(f"it redirects to {shown(scheme)}://{shown(host)}, not to https://.")
        return connect(host, port, scheme, *more)

    connections.connection_from_host = checked  # type: ignore[assignment]
    return connections


def shown(value: object) -> str:
    """A server's words, fit to be shown: one line that is not long."""
    text = ascii(str(value))[1:-1]
    return text if len(text) <= 300 else f"{text[:300]}..."


def _odd(what: str) -> Unreachable:
    return Unreachable(f"the server {what}. Download it by other means, and give its path.")


def _refused(answer: urllib3.BaseHTTPResponse) -> UserError:
    said = f"{answer.status} {shown(answer.reason or '')}".strip()
    advice = "Log in for gs://, or download it by other means, and give its path."
    return _KINDS.get(answer.status, Unreachable)(f"the server answers {said}. {advice}")


class _Part:
    def __init__(self, target: Path):
        self._target = target
        self._path = target.with_name(f".{target.name}.part")
        self._about = target.with_name(f".{target.name}.part.json")
        try:
            self._etag = _sendable(parse_json(self._about.read_bytes())["etag"])
            self._size = self._path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            self._delete()

    def _delete(self) -> None:
        self._etag, self._size = None, 0
        self._path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def headers(self, etag: str | None) -> dict[str, str]:
        """Headers that ask for the rest of what is there, else for what is not called `etag`."""
        if self._size and self._etag:
            return {"Range": f"bytes={self._size}-", "If-Range": self._etag}
        return {"If-None-Match": etag} if etag else {}

    def receive(self, answer: urllib3.BaseHTTPResponse, name: str) -> None:
        """Writes the body of an answer, behind what is there if that is how it goes on."""
        start, total = self._span(answer)
        check_room(self._target.parent, (total or start) - start, "VIT_JAX_CACHE")
        if not start:
            self._delete()
        etag = _sendable(answer.headers.get("ETag"))
        if etag and not etag.startswith("W/"):  # else none shows if a rest is of the same file
            write_file(self._about, json.dumps({"etag": etag}))
        screen = Screen(sys.stderr)
        done = mark = start
        until = time.monotonic() + SLOWEST_SECS
        try:
            with ThreadPool(1) as thread, self._path.open("ab" if start else "wb") as file:
                while data := thread.apply_async(answer.read1, (_READ_BYTES, False)).get(
                    until - time.monotonic()
                ):
                    file.write(data)
                    file.flush()
                    done += len(data)
                    if done - mark >= SLOWEST_BYTES:
                        mark, until = done, time.monotonic() + SLOWEST_SECS
                    if total is None and done > UNSTATED_BYTES:
                        raise _odd(f"states no length, and sends more than {format_bytes(done)}")
                    screen.bar(f"{name}, KiB", done // 1024, (total or done + 2048) // 1024)
        finally:
            screen.close()
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended
                answer.shutdown()
        if total is not None and done != total:
            raise EOFError(f"{done:,} of {total:,} bytes")

    def _span(self, answer: urllib3.BaseHTTPResponse) -> tuple[int, int | None]:
        """(bytes that are there before the body, bytes of the whole file if the server says)."""
        get = answer.headers.get
        if answer.status == 206:
            match = _RANGE.fullmatch(get("Content-Range", ""))
            same_file = get("ETag", self._etag) == self._etag  # some caches ignore If-Range
            if self._size and same_file and match and int(match[1]) == self._size:
                return self._size, int(match[2])
        if answer.status in (206, 416):  # elsewhere than asked, or behind the end: begin anew
            self._delete()
            raise EOFError("it goes on elsewhere than asked")
        if answer.status != 200:
            raise _refused(answer)
        if (encoding := get("Content-Encoding", "").lower()) not in ("", "identity"):
            raise _odd(f"sends it in the encoding {shown(encoding)}, which was not asked for")
        length = None if "Transfer-Encoding" in answer.headers else get("Content-Length")
        if length is not None and not _NUMBER.fullmatch(length):
            raise _odd(f"states the length {shown(length)}, which is not a number of bytes")
        return 0, None if length is None else int(length)

    def finish(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Checks the file, and gives it its name. UserError, and it is deleted, if damaged."""
        sha256, crc32c = hashlib.sha256(), google_crc32c.Checksum()
        with self._path.open("rb") as file:
            while data := file.read(2**20):
                sha256.update(data)
                crc32c.update(data)
        stated = re.search(r"\bcrc32c=([A-Za-z0-9+/]{6}==)", headers.get("x-goog-hash", ""))
        # Of a compressed object, that which was decompressed on the way has other bytes.
        stored = headers.get("x-goog-stored-content-encoding", "identity") == "identity"
        if stated and stored and base64.b64decode(stated[1]) != crc32c.digest():
            self._delete()
            raise UserError("it was damaged on its way here (CRC-32C): start again.")
        self._target.with_name(ABOUT).unlink(missing_ok=True)  # that of another file
        os.replace(self._path, self._target)
        self._delete()
        etag, generation = headers.get("ETag"), headers.get("x-goog-generation")
        names = {"etag": _sendable(etag), "generation": _sendable(generation)}
        return {"sha256": sha256.hexdigest(), **names}


def check_room(folder: Path, size_bytes: int, setting: str) -> None:
    """UserError if a folder, which `setting` moves, has no room for what is to come."""
    folder = next(each for each in (folder, *folder.resolve().parents) if each.is_dir())
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        rule = f"has room for {format_bytes(free)} of {format_bytes(size_bytes)}:"
        raise UserError(rule, field=str(folder), cure=f"give another by {setting}.")


def _sendable(tag: object) -> str | None:
    return tag if isinstance(tag, str) and _ETAG.fullmatch(tag) else None
