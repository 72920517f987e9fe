"""The work directory of a preparation, in the folder of its data set: lock, options, catalogues.

Once the data set is ready, only the lock and the options remain.
"""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.core.files import write_text
from vit_jax.prepare.options import PrepareOptions

NAME = ".preparing"
LOCK, OPTIONS = "lock", "options.json"
CATALOGUES = "catalogues"  # of parts; earlier versions left some without mirrors in "parts"
EVALUATIONS = "evaluations"  # hashes of evaluation sets


def refuse_other_options(work: Path, options: PrepareOptions) -> None:
    """UserError if files of the data set were written with other options."""
    now, before = _as_json(options), begun(work)
    differing = [name for name in now if name in before and before[name] != now[name]]
    if differing:
        raise UserError(
            f"{work.parent} was begun with other options: "
            + ", ".join(f"{name} was {before[name]!r}" for name in differing)
            + f". Give the same, another --version, or delete {work.parent}."
        )


def keep_options(work: Path, options: PrepareOptions, digests: Sequence[str]) -> None:
    """Records what the data set is written with: options, and digests of evaluation sets."""
    document = _as_json(options) | {EVALUATIONS: digests}
    write_text(work / OPTIONS, json.dumps(document))


def begun(work: Path) -> dict[str, Any]:
    """The contents that `keep_options` wrote; {} before any file was written."""
    path = work / OPTIONS
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Delete {work.parent}.") from error


def _as_json(options: PrepareOptions) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(options)))


def clear(work: Path) -> None:
    """Deletes everything but the lock and the options."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OPTIONS):
            path.unlink()
