"""One file by HTTP, which urllib3 speaks: retried, resumed where it broke off, and checked.

What has arrived stays beside the target in a file .NAME.part, with the server's name of its version
(ETag), by which a server goes on with the same file and no other. Checks are those that the server
states: the length, and of Google's storage the CRC-32C of each object.
"""

import base64
import contextlib
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
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import google_crc32c
import urllib3

import vit_jax
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json, write_text
from vit_jax.core.screen import Screen, format_bytes
from vit_jax.weights.online.names import LOOPBACK

T = TypeVar("T")
TIMEOUT_SECS = 20.0  # for a connection, and for a byte
ANSWER_SECS = 60.0  # until a file begins to come, redirections included
SLOWEST_SECS, SLOWEST_BYTES = 30.0, 30 * 2**10  # a server that sends less is given up
WAIT_SECS = (1, 3, 8)  # before the second, third, ... attempt
UNSTATED_BYTES = 4 * 2**30  # of a file whose length the server does not state
_MAY_PASS = frozenset({408, 429, 500, 502, 503, 504})
_READ_BYTES = 2**20
_ETAG = re.compile(r"[\x21-\x7e]{1,500}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})")


class Downloaded(NamedTuple):
    """A file that has arrived.

    Attributes:
      sha256: of its bytes, hexadecimal.
      etag: the server's name of its version, None if it gave none; generation: Google's.
    """

    sha256: str
    etag: str | None
    generation: str | None


class Unreachable(UserError):
    """No answer from the server, or none that it meant."""


class _BrokenOff(Unreachable):
    """An attempt that another one may follow."""


class Refused(UserError):
    """The server gives it to nobody, or to nobody without an account."""


def download(
    url: str, target: Path, *, name: str, etag: str | None, authorization: str = ""
) -> Downloaded | None:
    """Fetches a file to `target`, all of it or not at all; None: it is still what `etag` names.

    The caller has locked the target. `name` is what messages call it. `authorization`: the header.

    Raises:
      Refused: no access.
      Unreachable: no answer in several attempts, one that is too slow, or not that of a file.
      UserError: no such file, a damaged download, or a full disk.
    """
    for wait_secs in (*WAIT_SECS, None):
        try:
            return _attempt(url, target, name, etag, authorization)
        except UserError as error:
            if wait_secs is None or not isinstance(error, _BrokenOff):
                raise type(error)(f"{name}: {error}") from error
            time.sleep(wait_secs)
    raise AssertionError


def _attempt(
    url: str, target: Path, name: str, etag: str | None, authorization: str
) -> Downloaded | None:
    part = _Part(target)
    headers = {
        "User-Agent": f"vit_jax/{vit_jax.__version__}",
        "Accept-Encoding": "identity",  # the stored bytes, of which the checksums are
        **({"Authorization": authorization} if authorization else {}),
        **part.headers(etag),
    }
    try:
        with _connections(url) as connections:
            answer = within(ANSWER_SECS, lambda: _answer(connections, url, headers))
            if answer.status == 304 and "If-None-Match" in headers:
                return None
            part.receive(answer, name)
    except UserError:
        raise
    except multiprocessing.TimeoutError as error:
        raise _odd("is too slow") from error
    except Exception as error:  # of urllib3, http.client, ssl, and of addresses
        if isinstance(error, OSError) and error.filename is not None:  # of the disk
            raise UserError(
                f"it cannot be kept in {target.parent}: {error.strerror}. Make room, or give "
                "another folder by VIT_JAX_CACHE."
            ) from error
        # A redirection to what is not an address will be the same the next time.
        kind = Unreachable if isinstance(error, ValueError) else _BrokenOff
        raise kind(
            f"no answer from the server, or not all of it ({type(error).__name__}: {shown(error)})."
            " Look at the network, and start again: it goes on where it broke off."
        ) from error
    return part.finish(answer.headers)


def within(secs: float, call: Callable[[], T]) -> T:
    """The result of a call. multiprocessing.TimeoutError if it takes longer.

    Timeouts of sockets, which are those of HTTP libraries, begin anew with every byte.
    """
    with ThreadPool(1) as thread:  # which does not wait for it at its end, nor does the program
        return thread.apply_async(call).get(secs)


def _answer(
    connections: urllib3.PoolManager, url: str, headers: dict[str, str]
) -> urllib3.BaseHTTPResponse:
    # Errors are raised as they are: `download` tries again, and goes on with what has arrived.
    retries = urllib3.Retry(
        None, connect=False, read=False, other=False, redirect=10, respect_retry_after_header=False
    )
    return connections.request(
        "GET", url, headers=headers, retries=retries, preload_content=False, timeout=TIMEOUT_SECS
    )


def _connections(url: str) -> urllib3.PoolManager:
    """Connections to where `url` may redirect, by the proxy that the environment names."""
    start = urllib3.util.parse_url(url)
    proxy = getproxies().get(start.scheme or "")
    if proxy and not proxy_bypass(start.netloc or ""):
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        account = unquote(urllib3.util.parse_url(proxy).auth or "")
        sent = urllib3.make_headers(proxy_basic_auth=account) if account else None
        connections = urllib3.ProxyManager(proxy, proxy_headers=sent)
    else:
        connections = urllib3.PoolManager()
    connect = connections.connection_from_host

    def checked(host: str | None, port: Any = None, scheme: Any = "http", *more: Any) -> Any:
        plain = start.scheme == "http" and host in (start.host, *LOOPBACK)
        if scheme != "https" and not (scheme == "http" and plain):
            raise UserError(
                f"it redirects to {shown(scheme)}://{shown(host)}, and only https:// is followed: "
                "elsewhere anybody on the way could change the weights."
            )
        return connect(host, port, scheme, *more)

    connections.connection_from_host = checked  # type: ignore[method-assign]
    return connections


def shown(value: object) -> str:
    """What a server says, fit to be shown: in one line that is not long."""
    text = ascii(str(value))[1:-1]
    return text if len(text) <= 200 else f"{text[:200]}..."


def _odd(what: str) -> Unreachable:
    return Unreachable(f"the server {what}. Download it by other means, and give its path.")


def _refused(answer: urllib3.BaseHTTPResponse) -> UserError:
    said = f"{answer.status} {shown(answer.reason or '')}".strip()
    if answer.status in (404, 410):
        return UserError("the server has no such file. See whether the name is right.")
    if answer.status in (401, 403):
        return Refused(
            f"the server gives this to nobody without an account there, or has no such file "
            f"({said}). Public files are fetched, and those at gs:// that this machine's account "
            "may read (gcloud auth application-default login): else copy it to this machine by "
            "the tools of that place, and give its path."
        )
    kind = _BrokenOff if answer.status in _MAY_PASS else Unreachable
    return kind(f"the server answers {said}. Try again later, or download it by other means.")


class _Part:
    """What has arrived of a file."""

    def __init__(self, target: Path):
        self._target = target
        self._path = target.with_name(f".{target.name}.part")
        self._about = target.with_name(f".{target.name}.part.json")
        try:
            self._etag = sendable(parse_json(self._about.read_bytes())["etag"])
            self._size = self._path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            self._delete()

    def _delete(self) -> None:
        self._etag, self._size = None, 0
        self._path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def headers(self, etag: str | None) -> dict[str, str]:
        """What to ask for: the rest of what is there, else what is not called `etag`."""
        if self._size and self._etag:
            return {"Range": f"bytes={self._size}-", "If-Range": self._etag}
        return {"If-None-Match": etag} if etag else {}

    def receive(self, answer: urllib3.BaseHTTPResponse, name: str) -> None:
        """Writes the body of an answer, behind what is there if that is how it goes on."""
        start, total = self._span(answer)
        check_room(self._target.parent, (total or start) - start, "VIT_JAX_CACHE")
        etag = sendable(answer.headers.get("ETag"))
        if etag and not etag.startswith("W/"):
            write_text(self._about, json.dumps({"etag": etag}))
        else:  # nothing would show whether the rest is of the same file
            self._about.unlink(missing_ok=True)
        screen = Screen(sys.stderr)
        done = mark = start
        until = time.monotonic() + SLOWEST_SECS
        try:
            with ThreadPool(1) as thread, self._path.open("ab" if start else "wb") as file:
                while data := thread.apply_async(answer.read1, (_READ_BYTES, False)).get(
                    until - time.monotonic()
                ):
                    self._write(file, data)
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
            if self._size and match and int(match[1]) == self._size:
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

    def _write(self, file: Any, data: bytes) -> None:
        try:
            file.write(data)
            file.flush()
        except OSError as error:  # whose message names no file
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def finish(self, headers: Mapping[str, str]) -> Downloaded:
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
            raise UserError(
                "it was damaged on its way here: its CRC-32C is not what the server says. It is "
                "deleted; start the same command again."
            )
        os.replace(self._path, self._target)
        self._delete()
        etag, generation = headers.get("ETag"), headers.get("x-goog-generation")
        return Downloaded(sha256.hexdigest(), sendable(etag), sendable(generation))


def check_room(folder: Path, size_bytes: int, setting: str) -> None:
    """UserError if a folder, which `setting` moves, has no room for what is to come."""
    folder = next(each for each in (folder, *folder.resolve().parents) if each.is_dir())
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise UserError(
            f"{format_bytes(size_bytes)} are to come, and {folder} has room for "
            f"{format_bytes(free)}. Make room, or give another folder by {setting}."
        )


def sendable(tag: object) -> str | None:
    """An ETag, if it is one that a header can hold; else None."""
    return tag if isinstance(tag, str) and _ETAG.fullmatch(tag) else None
