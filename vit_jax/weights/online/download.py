"""One file by HTTP: retried, resumed where it broke off, and checked.

What has arrived stays beside the target in a file .NAME.part, with the server's name of its version
(ETag), by which a server goes on with the same file and no other. Checks are those that the server
states: the length, and of Google's storage the CRC-32C or MD5 of each object.
"""

import base64
import contextlib
import email.message
import hashlib
import http.client
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

import vit_jax
from vit_jax.core.errors import UserError
from vit_jax.core.files import write_text
from vit_jax.core.screen import Screen, format_bytes

TIMEOUT_SECS = 20
WAIT_SECS = (1, 3, 8)  # before the second, third, ... attempt
PART_BYTES = 2**20
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


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


class Refused(UserError):
    """The server gives it to nobody, or to nobody without an account."""


def download(
    url: str, target: Path, *, name: str, etag: str | None, authorization: str = ""
) -> Downloaded | None:
    """Fetches a file to `target`, all of it or not at all; None: it is still what `etag` names.

    The caller has locked the target. `name` is what messages call it. `authorization`: the header.

    Raises:
      Refused: no access.
      Unreachable: no answer, or none in several attempts.
      UserError: no such file, a damaged download, or a full disk.
    """
    part = _Part(target)
    for wait_secs in (*WAIT_SECS, None):
        try:
            with _opened(url, part, etag, authorization) as answer:
                part.receive(answer, name)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416:  # what is there is longer than the file: begin anew
                part.delete()
            if error.code == 304:
                return None
            if wait_secs is None or error.code not in _PASSING | {416}:
                raise _refused(error, name) from error
        except (http.client.HTTPException, TimeoutError, urllib.error.URLError, OSError) as error:
            if isinstance(error, OSError) and error.filename is not None:  # of the disk
                raise _unwritable(error, target, name) from error
            if wait_secs is None:
                reason = getattr(error, "reason", None) or error
                raise Unreachable(
                    f"{name}: no answer from the server, or not all of it "
                    f"({type(error).__name__}: {reason}), in {len(WAIT_SECS) + 1} attempts. Look "
                    "at the network, and start again: it goes on where it broke off."
                ) from error
        time.sleep(wait_secs)
    return part.finish(name)


def _opened(url: str, part: "_Part", etag: str | None, authorization: str) -> Any:
    headers = {
        "User-Agent": f"vit_jax/{vit_jax.__version__}",
        "Accept-Encoding": "identity",  # the stored bytes, of which the checksums are
    }
    if authorization:
        headers["Authorization"] = authorization
    if part.size and part.etag:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.etag}
    elif etag:
        headers["If-None-Match"] = etag
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT_SECS)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but none from https to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise UserError(
                f"{req.full_url} redirects to {newurl}, which is not encrypted: anybody on the way "
                "could change the weights."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Part:
    """What has arrived of a file."""

    def __init__(self, target: Path):
        self.target = target
        self.path = target.with_name(f".{target.name}.part")
        self._about = target.with_name(f".{target.name}.part.json")
        self.etag, self._headers = None, email.message.Message()
        try:
            self.etag = json.loads(self._about.read_text())["etag"]
        except (OSError, ValueError, KeyError, TypeError):
            self.delete()

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def delete(self) -> None:
        """Deletes what has arrived."""
        self.path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def receive(self, answer: Any, name: str) -> None:
        """Writes the body of an answer, behind what is there if that is how it goes on."""
        self._headers = answer.headers
        start = self.size if answer.status == 206 else 0
        if start and not (answer.headers["Content-Range"] or "").startswith(f"bytes {start}-"):
            self.delete()
            raise http.client.HTTPException("it goes on elsewhere than asked")
        self.etag = answer.headers["ETag"]
        length = answer.headers["Content-Length"]
        total = None if length is None else start + int(length)
        self._check_room(total, start, name)
        if self.etag and not self.etag.startswith("W/"):
            write_text(self._about, json.dumps({"etag": self.etag}))
        else:  # nothing would show whether the rest is of the same file
            self._about.unlink(missing_ok=True)
        screen = Screen(sys.stderr)
        try:
            with self.path.open("ab" if start else "wb") as file:
                done = start
                while data := answer.read(PART_BYTES):
                    self._write(file, data)
                    done += len(data)
                    screen.bar(f"{name}, KiB", done // 1024, (total or done + 2048) // 1024)
        finally:
            screen.close()
        if total is not None and done < total:
            raise http.client.IncompleteRead(b"", total - done)

    def _write(self, file: Any, data: bytes) -> None:
        try:
            file.write(data)
            file.flush()
        except OSError as error:  # whose message names no file
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _check_room(self, total: int | None, start: int, name: str) -> None:
        free = shutil.disk_usage(self.target.parent).free
        if total is not None and total - start > free:
            raise UserError(
                f"{name} has {format_bytes(total)}, of which {format_bytes(total - start)} are to "
                f"come, and {self.target.parent} has room for {format_bytes(free)}. Make room, or "
                "give another folder by VIT_JAX_CACHE."
            )

    def finish(self, name: str) -> Downloaded:
        """Checks the file, and gives it its name. UserError, and it is deleted, if damaged."""
        sha256, crc32c, md5 = hashlib.sha256(), google_crc32c.Checksum(), hashlib.md5()
        with self.path.open("rb") as file:
            while data := file.read(PART_BYTES):
                for each in (sha256, crc32c, md5):
                    each.update(data)
        own = {"crc32c": crc32c.digest(), "md5": md5.digest()}
        for kind, expected in _stated(self._headers).items():
            if own[kind] != expected:
                self.delete()
                raise UserError(
                    f"{name} was damaged on its way here: its {kind} is {own[kind].hex()}, the "
                    f"server says {expected.hex()}. It is deleted; start the same command again."
                )
        os.replace(self.path, self.target)
        self.delete()
        generation = self._headers["x-goog-generation"]
        return Downloaded(sha256.hexdigest(), self._headers["ETag"], generation)


def _stated(headers: email.message.Message) -> dict[str, bytes]:
    """The checksums that Google's storage states: x-goog-hash: crc32c=...,md5=..."""
    checksums = {}
    # Of a compressed object, that which was decompressed on the way has other bytes.
    if headers["x-goog-stored-content-encoding"] not in (None, "identity"):
        return {}
    for entry in ",".join(headers.get_all("x-goog-hash") or ()).split(","):
        kind, _, value = entry.strip().partition("=")
        if kind in ("crc32c", "md5"):
            with contextlib.suppress(ValueError):
                checksums[kind] = base64.b64decode(value, validate=True)
    return checksums


def _refused(error: urllib.error.HTTPError, name: str) -> UserError:
    if error.code in (404, 410):
        return UserError(f"{name}: the server has no such file. See whether the name is right.")
    if error.code in (401, 403):
        return Refused(
            f"{name}: the server gives this to nobody without an account there, or has no such "
            f"file ({error.code} {error.reason}). Public files are fetched, and those at gs:// "
            "that this machine's account may read (gcloud auth application-default login): else "
            "copy it to this machine by the tools of that place, and give its path."
        )
    return Unreachable(
        f"{name}: the server answers {error.code} {error.reason}. Try again later, or download the "
        "file by other means and give its path."
    )


def _unwritable(error: OSError, target: Path, name: str) -> UserError:
    return UserError(
        f"{name} cannot be kept in {target.parent}: {error.strerror}. Make room, or give another "
        "folder by VIT_JAX_CACHE."
    )
