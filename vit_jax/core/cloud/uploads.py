"""Copying what was made on this machine to gs:// and the like."""

import concurrent.futures
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from etils import epath

from vit_jax.core.cloud.answers import is_remote
from vit_jax.core.errors import UserError

_THREADS = 8  # that upload
_SMALL_BYTES = 2**20


@contextlib.contextmanager
def staged(output: str | os.PathLike) -> Iterator[str]:
    """Path of this machine to write a new file or folder to, which is uploaded afterwards.

    A path that is local already is given back as it is. UserError if something is there.
    """
    if not is_remote(output):
        yield os.fspath(output)
        return
    target = epath.Path(output)
    if target.exists():
        raise UserError(f"{target} is there already: give another output, or delete it.")
    with tempfile.TemporaryDirectory(prefix="vit_jax_upload_") as scratch:
        local = Path(scratch) / target.name
        yield str(local)
        upload(local, target)


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
