"""Files on the web and in public buckets of Google's storage, in a cache of this project's own.

    CACHE/weights/<hash of the address>/B_16.npz
                                        about.json    address, ETag, generation, SHA-256, date

A file that is there is asked for again by its ETag, and kept if it is still the same. Where the
server gives no answer it is used as it is, and a line on stderr says so. A pinned name asks only if
the file is not there.
"""

import datetime
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import filelock

from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir, parse_json, write_text
from vit_jax.weights.online import download
from vit_jax.weights.online.names import STORAGE

ABOUT = "about.json"
_READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
EMULATOR = "STORAGE_EMULATOR_HOST"  # as in Google's own libraries: http://localhost:4443


class Kept(NamedTuple):
    """A file in the cache: its path, the SHA-256 and ETag of its bytes, when it came."""

    path: Path
    sha256: str
    etag: str | None
    date: str


def fetch(url: str, sha256: str | None, *, name: str) -> Kept:
    """The file at an address; `name` is what messages call it.

    Raises:
      UserError: it is not there, cannot be read or kept, is damaged, or has another hash than
        `sha256`.
    """
    folder = cache_dir() / "weights" / hashlib.sha256(url.encode()).hexdigest()[:16]
    file = folder / re.sub(r"[^\w.-]", "_", Path(unquote(urlsplit(url).path)).name)[-100:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may be fetching it; then it is there afterwards.
        with filelock.FileLock(folder / ".lock"):
            kept = _fetched(url, file, sha256, name)
    except OSError as error:
        raise UserError(
            f"{name} cannot be kept in {folder}: {error.strerror or error}. Give another folder by "
            "VIT_JAX_CACHE."
        ) from error
    if sha256 is not None and kept.sha256 != sha256:
        raise UserError(
            f"{name}: what is there now has the SHA-256 {kept.sha256}, so it is another file than "
            "the one that is asked for. Leave out #sha256= to take it as it is."
        )
    return kept


def _fetched(url: str, file: Path, sha256: str | None, name: str) -> Kept:
    there = _kept(file)
    if there and sha256 == there.sha256:
        return there
    etag = there.etag if there else None
    try:
        try:
            new = download.download(_address(url), file, name=name, etag=etag)
        except download.Refused:  # so it is not public
            if not (token := _authorization(url)):
                raise
            new = download.download(_address(url), file, name=name, etag=etag, authorization=token)
    except download.Unreachable as error:
        if not there or sha256:
            raise
        print(f"Notice: {error}\nThe copy of {there.date} is used.", file=sys.stderr)
        return there
    if new is None:
        assert there is not None
        return there
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"url": url, **new._asdict(), "bytes": file.stat().st_size, "date": date}
    write_text(file.with_name(ABOUT), json.dumps(about, indent=2) + "\n")
    return Kept(file, new.sha256, new.etag, date)


def _kept(file: Path) -> Kept | None:
    """The file as its record says; None if it is not there, or not as it was kept."""
    try:
        about = parse_json(file.with_name(ABOUT).read_bytes())
        date = datetime.datetime.fromisoformat(about["date"]).isoformat()
        is_whole = re.fullmatch(r"[0-9a-f]{64}", about["sha256"]) is not None
        if is_whole and about["bytes"] == file.stat().st_size:
            return Kept(file, about["sha256"], download.sendable(about["etag"]), date)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _authorization(url: str) -> str:
    """The header that names this machine's account to Google's storage; "" without one."""
    if urlsplit(url).hostname != STORAGE:
        return ""
    try:
        import google.auth
        import google.auth.transport.requests as transport
    except ImportError:  # extra "gcs"
        return ""
    try:
        account, _ = google.auth.default(scopes=[_READ_ONLY])
        account.refresh(transport.Request())
    except google.auth.exceptions.GoogleAuthError:
        return ""
    return f"Bearer {account.token}"


def _address(url: str) -> str:
    """Where to ask: an emulator of Google's storage stands in for it where the environment says."""
    emulator = os.environ.get(EMULATOR)
    if emulator is None or urlsplit(url).hostname != STORAGE:
        return url
    host = emulator if "://" in emulator else f"http://{emulator}"
    return host.rstrip("/") + urlsplit(url).path
