"""Weights that are not on this machine, by their names: fetched into a cache, and pinned.

    hf:google/vit-base-patch16-224              a repository of the Hugging Face hub
    timm:vit_tiny_patch16_224.augreg_in21k      the repository timm/NAME there
    gs://vit_models/augreg/Ti_16-....npz        an object in a public bucket of Google's storage
    https://example.org/vit.safetensors         any other file

Behind @ comes a branch, tag or commit of a repository, behind #sha256= the hash of a file. A name
with a commit or a hash is pinned: it always means the same weights.
"""

import hashlib
import os
import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import filelock
from etils import epath

from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import atomic_file, cache_dir, expand_home, is_folder, is_remote
from vit_jax.weights.online import download, hub

HUB, TIMM = "hf", "timm"
ENDINGS = (".npz", ".safetensors")
_HASH = "#sha256="
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_PREFIX = re.compile(r"(?P<prefix>[A-Za-z][\w+.-]+):(?P<rest>.*)", re.DOTALL)
_HUB_HOSTS = ("huggingface.co", "hf.co")
_WEB = ("https", "http")
_STORAGES = ("gs", "s3", "az", "hf")  # epath reads folders there


class Name(NamedTuple):
    """The parts of a name."""

    given: str  # the name without its pin
    repository: str | None  # on the hub; None of a file
    url: str | None  # of a file; None of a repository
    pin: str | None  # the revision of a repository, or the SHA-256 of a file

    def pinned(self, pin: str) -> str:
        """The same name with this pin."""
        return f"{self.given}{'@' if self.repository else _HASH}{pin}"


def parse(path: str | os.PathLike | epath.Path) -> Name | None:
    """Parses a name; None for a path, or a folder in cloud storage."""
    text = os.fspath(path)
    match = _PREFIX.fullmatch(text)
    if not match:
        return None
    prefix, rest = match["prefix"], match["rest"]
    if rest.startswith("//"):
        return _file(text, prefix)
    if prefix in (HUB, TIMM):
        return _repository(text, prefix, rest)
    if rest.startswith("/") or os.path.exists(text):
        return None
    rule = f"is not there, and {prefix!r} is not a prefix as in hf:OWNER/NAME and timm:NAME."
    raise UserError(rule, field=text, cure=nearest(prefix, (HUB, TIMM)))


def _repository(text: str, prefix: str, rest: str) -> Name:
    repository, at, revision = rest.partition("@")
    is_revision = ".." not in revision and re.fullmatch(r"[\w./-]+", revision, re.ASCII)
    if (
        not _REPOSITORY.fullmatch(repository)
        or (prefix == TIMM and "/" in repository)
        or (at and not is_revision)
    ):
        raise UserError(f"{text} is not hf:OWNER/NAME or timm:NAME, with @REVISION, nor ./{text}.")
    where = repository if prefix == HUB else f"timm/{repository}"
    return Name(f"{prefix}:{repository}", where, None, revision or None)


def _file(text: str, scheme: str) -> Name | None:
    given, _, pin = text.partition(_HASH)
    web, rest = scheme.lower(), given.partition("://")[2]
    bucket, _, name = rest.partition("/")
    if scheme in _STORAGES and not (scheme == "gs" and name.endswith(ENDINGS)):
        return None  # a folder of a run, or one of checkpoints
    is_address = text.isprintable() and (not pin or re.fullmatch(r"[0-9a-f]{64}", pin))
    if scheme == "gs" and is_address:
        url = f"https://{download.STORAGE}/{quote(bucket)}/{quote(name)}"
        return Name(given, None, url, pin or None)
    given = f"{web}://{rest}"
    try:
        parts = urlsplit(given)
        path, has_host = unquote(parts.path), bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    # Nobody on the way can change what comes encrypted.
    safe = ("https",) if has_host and parts.hostname not in download.LOOPBACK else _WEB
    if not is_address or not has_host or " " in given or web not in safe:
        rule = f"is not https://HOST/PATH, with %20 for a space and {_HASH} and 64 digits behind."
        raise UserError(rule, field=ascii(text)[1:-1])
    if parts.username or parts.password:
        raise UserError(f"{parts.hostname}: a password in an address would be logged.")
    if parts.hostname in _HUB_HOSTS or not path.endswith(ENDINGS):
        rule = f"does not end in {' or '.join(ENDINGS)}: other formats are pickles, which run code."
        raise UserError(rule, field=text, cure="Of the hub give hf:OWNER/NAME.")
    return Name(given, None, given, pin or None)


# --- fetching

_WEIGHTS, _ABOUT = ".safetensors", ".json"


class Fetched(NamedTuple):
    """Weights on this machine, or in this project's cloud storage."""

    path: epath.Path  # the file or folder
    name: str | None  # the pinned name that it was fetched by; None of a path

    def __str__(self) -> str:
        return self.name or str(self.path)


def is_name(path: str | os.PathLike | epath.Path) -> bool:
    """Whether `path` names weights to fetch, and is not a path. UserError: a mistake in a name."""
    return parse(path) is not None


def check_name(path: str) -> None:
    """UserError for a name that cannot be fetched by what is installed; asks no server."""
    name = parse(path)
    if name is not None and name.repository:
        hub.library(path)


def fetch(path: str | os.PathLike | epath.Path) -> Fetched:
    """The weights that a name means, fetched unless the cache has them; a path as it is."""
    name = parse(path)
    if name is None:
        folder = epath.Path(expand_home(path))
        return Fetched(_copied(folder) if is_remote(path) else folder, None)
    called = os.fspath(path)
    if name.repository:
        snapshot = hub.fetch(name.repository, name.pin, name=called)
        return Fetched(epath.Path(snapshot), name.pinned(snapshot.name))
    assert name.url is not None
    kept = download.fetch(name.url, name.pin, name=called)
    return Fetched(epath.Path(kept.path), name.pinned(kept.sha256))


def _copied(folder: epath.Path) -> epath.Path:
    """The copy in the cache of a folder at gs:// with safetensors, which are mapped into memory.

    Any other folder as it is. The cache goes by names, sizes and times of files.
    """
    if not is_folder(folder):
        return folder
    files = [path for path in folder.iterdir() if path.name.endswith((_WEIGHTS, _ABOUT))]
    if not any(path.name.endswith(_WEIGHTS) for path in files):
        return folder
    stats = sorted((path.name, path.stat().length, path.stat().mtime) for path in files)
    key = hashlib.sha256(repr((str(folder), stats)).encode()).hexdigest()[:16]
    target = cache_dir() / "weights" / key / folder.name
    target.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / ".lock"):
        for path in files:
            if not (target / path.name).exists():
                with atomic_file(target / path.name) as temporary:
                    path.copy(temporary, overwrite=True)
    return epath.Path(target)
