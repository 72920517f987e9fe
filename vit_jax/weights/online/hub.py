"""Repositories of the Hugging Face hub, by huggingface_hub, whose cache and settings hold.

Of a repository come model.safetensors, or its parts and their index, config.json and
preprocessor_config.json, at one commit. Once the cache has all of a commit's, or knows that
it lacks one, nothing is asked for.
"""

import hashlib
import multiprocessing
import re
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.weights.files.detect_format import INDEX, read_json
from vit_jax.weights.online.download import check_room, shown, within

WEIGHTS = "model.safetensors"
BESIDE = ("config.json", "preprocessor_config.json")
ANSWER_SECS = 60.0  # for what the hub says of a repository, and of a file
SLOWEST_BYTES_PER_SEC = 2**14  # at which a file has to come
_BLOB = re.compile(r"(?!\.)[^/\\\0-\x1f]{1,200}")  # an ETag that can name a file


def fetch(repository: str, revision: str | None, *, name: str) -> Path:
    """The folder of a repository's files, which its commit names; messages speak of `name`."""
    hub = library(name)
    try:
        resolve = hub.HfApi().resolve_revision
        commit = within(ANSWER_SECS, lambda: resolve(repository, revision=revision)).resolved
        if not re.fullmatch("[0-9a-f]{40}", str(commit)):
            raise ValueError(f"the commit {shown(commit)!r}; is HF_ENDPOINT a hub?")
        repo = _Files(hub, repository, commit)
        for file in BESIDE:
            repo.file(file)
        weights = repo.file(WEIGHTS) or _parts(repo)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:  # the types are those of huggingface_hub and its HTTP library
        slow = isinstance(error, multiprocessing.TimeoutError)
        said = "it is too slow" if slow else f"{type(error).__name__}: {shown(error)}"
        places = f"{hub.constants.ENDPOINT}, nor in {hub.constants.HF_HUB_CACHE}"
        rule = f"is not to be had from {places} ({said}). What is private needs HF_TOKEN."
        raise UserError(rule, field=name) from error
    return weights.parent


def _parts(repo: "_Files") -> Path:
    index = repo.file(WEIGHTS + INDEX)
    if index is None:
        raise UserError(f"it lacks {WEIGHTS} and its parts; other files are pickles.")
    where = read_json(index).get("weight_map")
    files = set(map(str, where.values())) if isinstance(where, dict) else set()
    for file in sorted(files):
        # What the reader would refuse is not asked for: it says what is wrong with the index.
        if re.fullmatch(r"[\w.-]{1,200}\.safetensors", file, re.ASCII) and repo.file(file) is None:
            raise UserError(f"it lacks {file}, which {WEIGHTS}{INDEX} names.")
    return index


class _Files(NamedTuple):
    hub: Any
    repository: str
    commit: str

    def file(self, name: str) -> Path | None:
        """A file in the cache, fetched if it is not there; None: the repository lacks it."""
        there = self.hub.try_to_load_from_cache(self.repository, name, revision=self.commit)
        if isinstance(there, str):
            return Path(there)
        if there is not None:  # known to be absent
            return None
        size = within(ANSWER_SECS, lambda: self._size(name))
        secs = ANSWER_SECS + (2**30 if size is None else size) / SLOWEST_BYTES_PER_SEC
        get = self.hub.hf_hub_download
        try:
            path = Path(within(secs, lambda: get(self.repository, name, revision=self.commit)))
        except self.hub.errors.LocalEntryNotFoundError:  # one of the next, but says nothing
            raise
        except self.hub.errors.EntryNotFoundError:
            return None
        self._verify(path)
        return path

    def _size(self, name: str) -> int | None:
        """Bytes that are to come; None if the hub does not say, 0 if it lacks the file."""
        url = self.hub.hf_hub_url(self.repository, name, revision=self.commit)
        try:
            about = self.hub.get_hf_file_metadata(url, retry_on_errors=True)
            commit, etag, size = about.commit_hash, about.etag, about.size
        except self.hub.errors.EntryNotFoundError as error:
            commit, etag, size = error.response.headers.get("x-repo-commit"), None, 0
        if commit not in (self.commit, None) or not _BLOB.fullmatch(etag or "none"):
            odd = f"the commit {shown(commit)}, ETag {shown(etag)}"
            raise ValueError(f"{name} has {odd}; is HF_ENDPOINT a hub?")
        check_room(Path(self.hub.constants.HF_HUB_CACHE), size or 0, "HF_HOME")
        return size

    def _verify(self, path: Path) -> None:
        """UserError if the file's SHA-256 is not what the hub says; then it is deleted.

        The cache calls large files by that hash. huggingface_hub compares sizes alone.
        """
        blob = path.resolve()
        if not re.fullmatch("[0-9a-f]{64}", blob.name):
            return
        with blob.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != blob.name:
            blob.unlink()
            path.unlink(missing_ok=True)
            raise UserError(f"{path.name} was damaged on its way here (SHA-256): start again.")


def library(name: str) -> Any:
    """huggingface_hub; UserError if it is not installed. `name` is what asks for it."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        rule = "needs huggingface_hub: pip install 'vit-jax-pretraining[hub]'"
        raise UserError(rule, field=name) from error
    return huggingface_hub
