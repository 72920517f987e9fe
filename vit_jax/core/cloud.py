"""Paths at gs:// and the like: which errors are their storage's, and copying to them.

Five libraries speak to it, each with errors of its own: TensorFlow (by etils' paths), TensorStore
(the arrays of checkpoints), google-cloud-storage (orbax), array_record, and fsspec. They try what
may pass again by themselves, for minutes; what arrives here has failed for good.
"""

import concurrent.futures
import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from etils import epath

from vit_jax.core import errors
from vit_jax.core.files import expand_home, is_remote

# Modules whose errors are the storage's, or of the network before it.
_MODULES = (
    "google.api_core.", "google.auth.", "google.cloud.", "google.resumable_media.", "requests.",
    "aiohttp.", "gcsfs.", "s3fs.", "botocore.",
)  # fmt: skip
# TensorFlow, TensorStore and array_record fail for other reasons too: theirs name a URL.
_URL = re.compile(r"\b(gs|s3|az|hf|https?)://|file system scheme", re.IGNORECASE)
_OTHERS = ("jax", "concurrent.", "urllib.")  # modules with messages that begin like TensorStore's
# How TensorStore's and array_record's messages begin, in Google's RPC codes; codes that what is
# stored has caused, such as DATA_LOSS, are not among them.
_CODES = (
    "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "NOT_FOUND", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE", "UNKNOWN",
)  # fmt: skip
# In TensorStore's messages about what the storage answered, and TensorFlow's about the network.
_ANSWERS = ("http_response_code=", "Error executing an HTTP request")


def failure(error: BaseException) -> BaseException | None:
    """The storage's error that `error` is or was caused by; None if it is another error."""
    for cause in _causes(error):
        text = str(getattr(cause, "message", None) or cause)
        is_module = type(cause).__module__.startswith
        names_url = _URL.search(text) and not is_module(_OTHERS)
        is_known = text.startswith(_CODES) or is_module("tensorflow.")
        is_answer = any(answer in text for answer in _ANSWERS)
        if is_module(_MODULES) or is_answer or (names_url and is_known):
            return cause
    return None


def is_missing(failed: BaseException) -> bool:
    """Returns whether a failure is that there is no such object, rather than no access to it."""
    return bool(re.search("404|NotFound|NOT_FOUND|does not exist", errors.describe_error(failed)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        cause = waiting.pop(0)
        if any(cause is other for other in seen):
            continue
        seen.append(cause)
        yield cause
        waiting += list(getattr(cause, "exceptions", ()))
        context = None if cause.__suppress_context__ else cause.__context__
        waiting += [e for e in (cause.__cause__, context) if e is not None]


_THREADS = 8  # that upload
_SMALL_BYTES = 2**20


def check_new(output: str | os.PathLike) -> None:
    """Raises UserError if something, even a link that leads nowhere, is where output will be."""
    path = expand_home(output)
    if epath.Path(path).exists() if is_remote(path) else os.path.lexists(path):
        raise errors.UserError(f"{path} is there already: give another output.")


@contextlib.contextmanager
def staged(output: str | os.PathLike) -> Iterator[str]:
    """Path of this machine to write a new file or folder to, which is uploaded afterwards.

    What is written beside it is uploaded before it. A path that is local already is given back.
    """
    check_new(output)
    if not is_remote(output):
        yield expand_home(output)
        return
    target = epath.Path(output)
    with tempfile.TemporaryDirectory(prefix="vit_jax_upload_") as scratch:
        local = Path(scratch) / target.name
        yield str(local)
        for path in sorted(Path(scratch).iterdir(), key=lambda path: path == local):
            upload(path, target.parent / path.name)


def upload(
    source: Path,
    target: epath.Path,
    *,
    last: str = "",
    leave_out: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Copies a file, or what is below a folder, to cloud storage; an object appears whole.

    Files of the same size that are there already are not copied again, so that an interrupted copy
    goes on; small ones are, since their size may stay the same.

    Args:
      last: name of the file that is copied after all others, which says that they are there.
      leave_out: names in the folder that are not copied.
      tell: is called with the numbers of files that are there and in all.
    """
    if source.is_file():
        epath.Path(source).copy(target, overwrite=True)
        return
    files = [p for p in sorted(source.rglob("*")) if p.is_file()]
    names = [p.relative_to(source) for p in files]
    names = [name for name in names if name.parts[0] not in leave_out and str(name) != last]

    def copy(name: Path) -> None:
        there = target / name.as_posix()
        size = (source / name).stat().st_size
        if size < _SMALL_BYTES or not there.exists() or there.stat().length != size:
            epath.Path(source / name).copy(there, overwrite=True)

    total = len(names) + bool(last)
    tell(0, total)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for done, _ in enumerate(pool.map(copy, names), start=1):
            tell(done, total)
    if last:
        epath.Path(source / last).copy(target / last, overwrite=True)
        tell(total, total)
