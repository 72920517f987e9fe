"""Repositories of the Hugging Face hub, by huggingface_hub, whose cache and settings hold.

Of a repository come model.safetensors, or its parts and their index, config.json and
preprocessor_config.json, at one commit. Once the cache has all of a commit's, or knows that
it lacks one, nothing is asked for.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError
from vit_jax.weights.files.detect_format import INDEX, read_json

WEIGHTS = "model.safetensors"
BESIDE = ("config.json", "preprocessor_config.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".npz")


class Snapshot(NamedTuple):
    """A repository at a commit, with the files that are read."""

    folder: Path
    commit: str


def check_installed(name: str) -> None:
    """UserError unless huggingface_hub is there; `name` is what asks for it."""
    _library(name)


def fetch(repository: str, revision: str | None, *, name: str) -> Snapshot:
    """The files of a repository; `name` is what messages call it.

    Raises:
      UserError: no such repository or revision, no access, no network, no safetensors, a damaged
        download, a full disk, or huggingface_hub is not installed.
    """
    hub = _library(name)
    try:
        commit = hub.HfApi().resolve_revision(repository, revision=revision).resolved
        repo = _Files(hub, repository, commit, name)
        for file in BESIDE:
            repo.file(file)
        weights = repo.file(WEIGHTS) or _parts(repo)
    except UserError:
        raise
    except Exception as error:  # the types are those of huggingface_hub and its HTTP library
        raise _explained(hub, error, repository, revision, name) from error
    return Snapshot(weights.parent, commit)


def _parts(repo: "_Files") -> Path:
    """The index of weights in several files, which are fetched."""
    index = repo.file(WEIGHTS + INDEX)
    if index is None:
        raise UserError(f"{repo.name} has neither {WEIGHTS} nor its parts{_instead(repo)}")
    where = read_json(index).get("weight_map")
    files: Iterable[Any] = where.values() if isinstance(where, dict) else ()
    for file in sorted(set(map(str, files))):
        # What the reader would refuse is not asked for: it says what is wrong with the index.
        if re.fullmatch(r"[\w.-]+\.safetensors", file, re.ASCII) and repo.file(file) is None:
            raise UserError(f"{repo.name} lacks {file}, which {WEIGHTS}{INDEX} names.")
    return index


def _instead(repo: "_Files") -> str:
    """What a repository has in place of safetensors, as the end of a sentence."""
    try:
        files = repo.hub.HfApi().list_repo_files(repo.repository, revision=repo.commit)
    except Exception:
        files = []
    others = [f for f in files if f.endswith(_PICKLES)]
    has = f"; it has {', '.join(others[:3])}." if others else "."
    return (
        f"{has} Of a repository nothing but safetensors is read, since pickles can run code. "
        "Choose another with safetensors; or download and convert what you trust (docs/weights.md)."
    )


class _Files(NamedTuple):
    """Files of a repository at a commit."""

    hub: Any
    repository: str
    commit: str
    name: str

    def file(self, name: str) -> Path | None:
        """A file in the cache, fetched if it is not there; None: the repository lacks it."""
        there = self.hub.try_to_load_from_cache(self.repository, name, revision=self.commit)
        if isinstance(there, str):
            return Path(there)
        if there is not None:  # known to be absent
            return None
        missing = self.hub.errors.EntryNotFoundError
        try:
            path = Path(self.hub.hf_hub_download(self.repository, name, revision=self.commit))
        except self.hub.errors.LocalEntryNotFoundError:  # one of the next, but says nothing
            raise
        except missing:
            return None
        self._verify(path)
        return path

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
            raise UserError(
                f"{self.name}: {path.name} was damaged on its way here: its SHA-256 is {digest}, "
                f"not {blob.name}. It is deleted; start the same command again."
            )


def _library(name: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise UserError(
            f"{name} is on the Hugging Face hub, and huggingface_hub is not installed: "
            "pip install 'vit-jax-pretraining[hub]' (in a clone, --editable '.[hub]'). Or download "
            "the repository, and give its folder."
        ) from error
    return huggingface_hub


def _explained(
    hub: Any, error: Exception, repository: str, revision: str | None, name: str
) -> UserError:
    """What to do about an error of huggingface_hub."""
    errors = hub.errors
    where = hub.constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "a token" if hub.get_token() is None else "another token than the one that was sent"
    if isinstance(error, errors.GatedRepoError):
        said = (
            f"access to {repository} is granted by its owners alone: ask for it at "
            f"{where}/{repository}, and set HF_TOKEN to {token} of an account that has it."
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        said = f"{repository} has no branch, tag or commit {revision!r}: see {where}/{repository}."
    elif isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        said = (
            f"{where} has no repository {repository}, or it is private. See whether the name is "
            f"right; for a private one set HF_TOKEN to {token} of an account that may read it."
        )
    elif isinstance(error, errors.HFValidationError):
        said = f"the hub takes no such name ({error})."
    elif _is_offline(hub):
        said = (
            "HF_HUB_OFFLINE forbids to ask the hub, and the cache in "
            f"{hub.constants.HF_HUB_CACHE} does not have all of it: run once without it."
        )
    elif isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        said = (
            f"{error.filename} cannot be written: {error.strerror}. Make room, or move the cache "
            "by HF_HOME."
        )
    elif isinstance(error, OSError) and error.errno is not None:
        said = (
            f"{error.strerror or error}, at {hub.constants.HF_HUB_CACHE} or on the way from "
            f"{where}. Make room, or move the cache by HF_HOME; or try again."
        )
    else:
        first = (str(error).splitlines() or [""])[0][:200]
        said = (
            f"it could not be fetched from {where} ({type(error).__name__}: {first}), and the "
            "cache does not have all of it. Look at the network, and start the same command again."
        )
    return UserError(f"{name}: {said}")


def _is_offline(hub: Any) -> bool:
    return bool(hub.constants.is_offline_mode())
