"""A data set at gs://: made on a disk of this machine, then uploaded.

ArrayRecord's writer, as pip installs it, writes to this machine's files only. What is interrupted
goes on: files that are there are not uploaded again. The file that says that the data set is ready
is uploaded last.
"""

import hashlib
from pathlib import Path

from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.core.files import cache_dir
from vit_jax.core.screen import Screen
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.store import workdir_lock
from vit_jax.tools.prepare.pipeline import WORK_DIR
from vit_jax.tools.prepare.prepared_set import PreparedSet


def scratch_folder(output: str, scratch: str | None) -> Path:
    """Where the data set for `output` is made; another one for each output."""
    parent = Path(scratch).expanduser() if scratch else cache_dir() / "prepared"
    return parent / hashlib.sha256(output.rstrip("/").encode()).hexdigest()[:16]


def check(output: str, scratch: Path, name: str, version: str) -> None:
    """UserError if another data set is at the output already; writes the folder there."""
    there = epath.Path(output) / name / version
    if (there / NOTE).exists() and not (scratch / name / version / NOTE).is_file():
        raise UserError(
            f"{there} holds a data set that was made elsewhere: give another --version or --name, "
            "or delete it."
        )
    there.mkdir(parents=True, exist_ok=True)


def upload(data_set: PreparedSet, output: str, screen: Screen) -> epath.Path:
    """Copies what is missing; returns the folder. UserError if another command writes there."""
    version = data_set.folder
    target = epath.Path(output) / version.parent.name / version.name
    with workdir_lock.hold_lease(str(target), ".lock"):
        cloud.upload(
            version,
            target,
            last=NOTE,
            leave_out=(WORK_DIR,),
            tell=lambda done, total: screen.bar("uploading", done, total),
        )
    return target
