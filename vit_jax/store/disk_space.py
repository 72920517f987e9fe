"""Checks that a run can write its work directory and has disk space, leaving no trace."""

import errno
import importlib.util
import shutil
import tempfile

from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.core.screen import format_bytes
from vit_jax.store import workdir


def check_name(folder: epath.Path) -> None:
    """UserError for a folder of checkpoints whose name orbax cannot have, which is UTF-8."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The name of the folder {str(folder)!a} is not UTF-8. Give another."
        ) from error


def check_writable(folder: epath.Path) -> None:
    """Raises UserError if the work directory cannot be created or written; leaves no trace.

    It writes a file: permissions alone are not reliable, least of all for root. Nothing is tried
    on gs:// and the like; there it is what orbax imports that has to be installed.
    """
    check_name(folder)
    if cloud.is_remote(folder) and not str(folder).startswith("gs://"):
        raise UserError(
            f"The work directory {folder} cannot be written: give a folder or gs://..., or mount "
            "that storage as a folder."
        )
    if str(folder).startswith("gs://") and not has_google_storage():
        raise UserError(
            f"The work directory {folder} needs google-cloud-storage, by which orbax looks for "
            "checkpoints in a bucket, and it is not installed: pip install "
            "'vit-jax-pretraining[gcs]' (in a clone, --editable '.[gcs]')."
        )
    if cloud.is_remote(folder):
        return
    try:
        try_writing(folder)
    except OSError as error:
        raise workdir.unwritable(folder, error) from error


def has_google_storage() -> bool:
    """Whether google-cloud-storage is installed."""
    try:
        return importlib.util.find_spec("google.cloud.storage") is not None
    except ModuleNotFoundError:  # google.cloud is not there either
        return False


def try_writing(folder: epath.Path) -> None:
    """OSError if a file cannot be written to the local folder, or where it would be created."""
    there = _nearest_existing(folder)
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{there} is a file")
    with tempfile.TemporaryFile(dir=there):
        pass


def check_output(file: epath.Path, flag: str = "output") -> None:
    """Raises UserError if the file that a flag names cannot be written; leaves no trace."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not cloud.is_remote(file):
            try_writing(file.parent)
    except OSError as error:
        raise unwritable(file, error, flag) from error


def unwritable(file: epath.PathLike, error: OSError, flag: str = "output") -> UserError:
    """The error for a file that a flag names and that cannot be written."""
    return UserError(
        f"--{flag}={file} cannot be written: {error.strerror or error}. Give a file in a "
        "folder that is writable and has room."
    )


def check_disk_space(
    folder: epath.Path,
    *,
    checkpoint_bytes: int,
    keep_last: int,
    every_steps: int,
    total_steps: int,
) -> None:
    """Raises UserError if the checkpoints of a run do not fit on its disk; only for local disks.

    A new checkpoint is complete before an old one is deleted, so there is one more than the
    `keep_last` that are kept. One is saved every `every_steps`, and after `total_steps`.
    """
    if cloud.is_remote(folder):
        return
    there = workdir.steps(folder / "checkpoints")
    latest = max(there, default=0)
    if latest >= total_steps:
        return
    to_come = -(-total_steps // every_steps) - latest // every_steps
    missing = min(to_come, max(keep_last + 1 - len(there), 1))
    needed = missing * checkpoint_bytes
    free = shutil.disk_usage(_nearest_existing(folder)).free
    if needed > free:
        raise UserError(
            f"The disk of the work directory {folder} has {format_bytes(free)} free; "
            f"{missing} more checkpoints of {format_bytes(checkpoint_bytes)} need "
            f"{format_bytes(needed)}: checkpoint.keep_last={keep_last}, and one more while it is "
            f"written. Free {format_bytes(needed - free)}, keep fewer, or give another --workdir."
        )


def _nearest_existing(folder: epath.Path) -> epath.Path:
    """The folder itself, or its nearest existing parent."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
