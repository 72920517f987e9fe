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

from vit_jax.core import cloud
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.files import atomic_file, cache_dir
from vit_jax.weights.online import download, hub

HUB, TIMM = "hf", "timm"
ENDINGS = (".npz", ".safetensors")
_HASH = "#sha256="
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_PREFIX = re.compile(r"(?P<prefix>[A-Za-z][\w+.-]+):(?P<rest>.*)", re.DOTALL)
_HUB_HOSTS = ("huggingface.co", "hf.co")
_STORAGES = ("gs", "s3", "az", "hf")  # epath reads folders there


class Name(NamedTuple):
    """What a name says.

    Attributes:
      given: the name without its pin.
      repository: on the hub; None of a file.
      url: of a file; None of a repository.
      pin: the revision of a repository, or the SHA-256 of a file.
    """

    given: str
    repository: str | None
    url: str | None
    pin: str | None

    def pinned(self, pin: str) -> str:
        """The same name with this pin."""
        return f"{self.given}{'@' if self.repository else _HASH}{pin}"


def parse(path: str | os.PathLike | epath.Path) -> Name | None:
    """What a name says; None for what is a path, or a folder in cloud storage.

    UserError for a name with a mistake in it.
    """
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
    raise UserError(
        f"{text}: there is no such file, and {prefix!r} is not a prefix of names. "
        f"{nearest(_meant(prefix), (HUB, TIMM))} A repository of the Hugging Face hub is named as "
        "in hf:google/vit-base-patch16-224, one of timm as in timm:vit_tiny_patch16_224."
    )


def _meant(prefix: str) -> str:
    word = prefix.lower()
    return HUB if "hugging" in word or word in ("hub", "hf_hub", "hf-hub") else word


def _repository(text: str, prefix: str, rest: str) -> Name:
    repository, at, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(repository) or (prefix == TIMM and "/" in repository):
        rule = "hf:OWNER/NAME" if prefix == HUB else "timm:NAME, without an owner"
        raise UserError(
            f"{text} names no repository: give {rule}, with letters, digits, '-', '_' and '.', and "
            "behind it a @ and a branch, tag or commit if it is not to be the newest. "
            f"A file of this machine is given as ./{text}."
        )
    if at and (".." in revision or not re.fullmatch(r"[\w./-]+", revision, re.ASCII)):
        raise UserError(f"{text}: behind the @ comes a branch, tag or commit of the repository.")
    where = repository if prefix == HUB else f"timm/{repository}"
    return Name(f"{prefix}:{repository}", where, None, revision or None)


def _file(text: str, scheme: str) -> Name | None:
    given, _, pin = text.partition(_HASH)
    if pin and not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise UserError(
            f"{text}: behind {_HASH} come the 64 hexadecimal digits of the file's hash."
        )
    if not text.isprintable():
        raise UserError(f"{ascii(text)[1:-1]}: addresses have no characters that do not print.")
    if scheme == "gs":
        bucket, _, name = given.removeprefix("gs://").partition("/")
        # Anything else there is a folder of a run, or one of checkpoints.
        if not name.endswith(ENDINGS):
            return None
        return Name(
            given, None, f"https://{download.STORAGE}/{quote(bucket)}/{quote(name)}", pin or None
        )
    if scheme in _STORAGES:
        return None
    web, rest = scheme.lower(), given.partition("://")[2]
    if web not in ("http", "https"):
        place = f"give the path: /{rest.lstrip('/')}" if web == "file" else "download the file"
        raise UserError(f"{text}: weights are not fetched by {scheme}://, {place}.")
    given = f"{web}://{rest}"
    try:
        parts = urlsplit(given)
        path = unquote(parts.path)
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or " " in given:
        raise UserError(f"{text} is not an address: give https://HOST/PATH, with %20 for a space.")
    if parts.hostname in _HUB_HOSTS:
        owner_and_name = "/".join(path.strip("/").split("/")[:2])
        raise UserError(
            f"{text} is a page of the Hugging Face hub: give hf:{owner_and_name}, which brings the "
            "files beside the weights too."
        )
    if not path.endswith(ENDINGS):
        raise UserError(
            f"{text} is not the address of a file of weights: it ends in neither "
            f"{' nor '.join(ENDINGS)}. Files of other formats are pickles, which can run code."
        )
    if web == "http" and parts.hostname not in download.LOOPBACK:
        raise UserError(f"{text}: weights come by https:// alone, so that nobody can change them.")
    if parts.username or parts.password:
        raise UserError(
            f"{parts.hostname}: an address with a password in it would be written into logs and "
            "checkpoints. Download the file, and give its path."
        )
    return Name(given, None, given, pin or None)


# --- fetching

_WEIGHTS, _ABOUT = ".safetensors", ".json"


class Fetched(NamedTuple):
    """Weights on this machine, or in this project's cloud storage.

    Attributes:
      path: the file or folder.
      name: the pinned name that it was fetched by; None of a path.
    """

    path: epath.Path
    name: str | None

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
    """The weights that a name means, fetched unless the cache has them; a path as it is.

    Raises:
      UserError: a mistake in a name, or it cannot be fetched.
    """
    name = parse(path)
    if name is None:
        folder = epath.Path(path).expanduser()
        return Fetched(_copied(folder) if cloud.is_remote(path) else folder, None)
    called = os.fspath(path)
    if name.repository:
        snapshot = hub.fetch(name.repository, name.pin, name=called)
        return Fetched(epath.Path(snapshot), name.pinned(snapshot.name))
    assert name.url is not None
    kept = download.fetch(name.url, name.pin, name=called)
    return Fetched(epath.Path(kept.path), name.pinned(kept.sha256))


def _copied(folder: epath.Path) -> epath.Path:
    """The copy in the cache of a folder at gs:// with safetensors, which are mapped into memory.

    Any other folder as it is. Where names, sizes and times of its files are as they were, they are
    not copied again.
    """
    if not cloud.is_folder(folder):
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
