"""Cache of the figures of steps that were compiled for absent TPUs.

jax's own cache keeps programs that can be run; a plan needs only a few figures of them, or the fact
that the step did not fit. Each entry is a small file in the user's cache directory, named after a
hash of the compiler's whole input: the program with its shardings, the topology and the order of
its devices, versions and flags; and of the code that reads the figures. A file that cannot be read
counts as missing.
"""

import contextlib
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

from etils import epath

from vit_jax.core.files import cache_dir, write_text
from vit_jax.plan import collectives, compiled, hlo
from vit_jax.plan.compiled import DoesNotFit, Figures, LoweredStep

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # environment variables
_REASON = "does_not_fit"


def figures(step: LoweredStep, topology: str, *, anew: bool) -> tuple[Figures, bool]:
    """The figures of a step, and whether they are from the cache.

    Args:
      topology: a name such as "v5e:16x16".
      anew: compile it even if its figures are cached, and cache the new ones.

    Raises:
      DoesNotFit: now, or when it was compiled before.
    """
    path = folder() / f"{key(step, topology)}.json"
    kept = None if anew else _read(path)
    if isinstance(kept, str):
        raise DoesNotFit(kept)
    if kept is not None:
        return kept, True
    try:
        new = compiled.read_figures(step)
    except DoesNotFit as error:
        _write(path, {_REASON: str(error)})
        raise
    _write(path, new._asdict())
    return new, False


def folder() -> Path:
    """The cache directory; it may be deleted at any time."""
    return cache_dir() / "plans"


def key(step: LoweredStep, topology: str) -> str:
    """A hash of a program and of everything that determines its compilation."""
    devices = list(step.mesh.devices.flat)
    parts = [
        step.lowered.as_text(),
        topology,
        str([(d.id, d.device_kind) for d in devices]),
        *(metadata.version(package) for package in ("jax", "jaxlib")),
        devices[0].client.platform_version,  # version of libtpu
        *(os.environ.get(flag, "") for flag in FLAGS),
        *(Path(str(module.__file__)).read_text() for module in (compiled, collectives, hlo)),
    ]
    digests = [hashlib.sha256(part.encode()).digest() for part in parts]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _read(path: Path) -> Figures | str | None:
    """Figures, or the reason why the step did not fit; None if the file is invalid."""
    try:
        document = json.loads(path.read_text())
        return str(document[_REASON]) if _REASON in document else Figures(**document)
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, document: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # a plan works without a cache
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(epath.Path(path), json.dumps(document))
