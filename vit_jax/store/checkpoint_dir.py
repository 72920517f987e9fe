"""One checkpoint on disk, `<workdir>/checkpoints/<step>/`: its description, reading, verification.

    state/         the arrays (orbax), as nested plain dictionaries by name
    description/   JSON: the caller's entries (model fields, class names, preprocessing ...), and
                   "arrays": {name: {"shape", "dtype", "checksum"}}, "metrics", and
                   "crc32", over the JSON of all the rest

Arrays are identified by names ("params/head/bias"), not positions, so that neither the order of
keys nor the type of a container matters. A folder without a description is not a checkpoint.
"""

import json
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.core.files import parse_json
from vit_jax.store import array_files, orbax_log
from vit_jax.store.checksums import checksums
from vit_jax.store.step_names import steps

STATE = "state"
DESCRIPTION = "description"
DESCRIPTION_FILE = "metadata"  # the name that orbax's JsonSave gives
PARAMS = "params"
OPTIMIZER = "opt_state"
EMA = "ema"  # the parameters' moving average, if there is one
MAX_DAMAGED_SHOWN = 3  # arrays
MAX_DIFFERENCES_SHOWN = 20
MAX_CAUSE_CHARACTERS = 200

Layout = Mapping[str, jax.ShapeDtypeStruct]
T = TypeVar("T")


class DamagedError(UserError):
    """The checkpoint is unfinished, unreadable, or its bits have changed."""

    def __init__(self, folder: epath.Path, reason: str):
        self.folder, self.reason = folder, reason
        super().__init__(
            f"The checkpoint {folder} is damaged: {reason}. Use another step's folder."
        )


def absolute(path: epath.PathLike) -> epath.Path:
    """An absolute path, as orbax requires."""
    folder = epath.Path(path)
    # Asked first, because epath's absolute() takes gs:// for a relative path.
    return folder if folder.is_absolute() else folder.absolute()


def find(path: epath.PathLike) -> epath.Path:
    """A work directory, its checkpoints folder or a step's folder -> the step's folder.

    Of several steps it is the newest whose description is intact, with a notice if that is not the
    last; arrays are verified when they are read. Raises UserError if there is none.
    """
    folder = epath.Path(path)
    if (folder / DESCRIPTION).is_dir():
        return folder
    directory = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    found = steps(directory)
    for step in reversed(found):
        try:
            read_description(directory / str(step))
        except DamagedError as error:
            print(f"Notice: checkpoint {step} is skipped: {error.reason}.", file=sys.stderr)
            continue
        return directory / str(step)
    if found:
        raise UserError(f"All checkpoints in {directory} are damaged: steps {found}.")
    raise UserError(
        f"No checkpoint in {folder}. Give a work directory, its checkpoints folder or a step's "
        "folder, e.g. DIR, DIR/checkpoints or DIR/checkpoints/1000."
    )


def describe(
    arrays: Mapping[str, jax.Array], description: dict[str, Any], metrics: dict[str, float]
) -> dict[str, Any]:
    """The document that `read_description` will return: only JSON types, checksums included."""
    sums = checksums(arrays)
    document = {
        **description,
        "metrics": metrics,
        "arrays": {
            name: {"shape": list(x.shape), "dtype": str(x.dtype), "checksum": sums[name]}
            for name, x in arrays.items()
        },
    }
    document = json.loads(json.dumps(document))  # tuples become lists, keys strings
    return {**document, "crc32": _crc32(document)}


def read_description(step_dir: epath.PathLike) -> dict[str, Any]:
    """The JSON of a checkpoint. Raises DamagedError if it is missing or was changed."""
    folder = epath.Path(step_dir)
    try:
        document = parse_json((folder / DESCRIPTION / DESCRIPTION_FILE).read_bytes())
        intact = document.pop("crc32") == _crc32(document)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedError(folder, f"its description cannot be read ({error})") from error
    if not intact:
        raise DamagedError(folder, "its description has changed since it was written")
    return document


def restore_params(step_dir: epath.PathLike, layout: Any, *, ema: bool = False) -> Any:
    """Restores only the parameters, or their moving average, verified.

    layout: the parameters' tree of ShapeDtypeStructs; one without a sharding goes to the first
    local device. Raises UserError for another model's layout, or a checkpoint without a moving
    average, and DamagedError for a damaged one.
    """
    which = params_or_ema(step_dir, ema=ema)
    return read(step_dir, {which: layout}, under=which + "/")[which]


def params_or_ema(step_dir: epath.PathLike, *, ema: bool) -> str:
    """The prefix of the wanted parameters' names. UserError if they are missing."""
    if ema and not any(n.startswith(EMA + "/") for n in read_description(step_dir)["arrays"]):
        raise UserError(
            f"The checkpoint {step_dir} has no moving average (EMA) of its weights: its run had no "
            "optim.ema_decay. Ask for the raw weights: leave out --ema, ema=True or init.ema."
        )
    return EMA if ema else PARAMS


def read(step_dir: epath.PathLike, layout: Any, *, under: str = "") -> Any:
    """The arrays whose names start with `under`, verified, in the tree of `layout`."""
    folder = absolute(step_dir)
    wanted = {name: _placed(x) for name, x in pytrees.flatten(layout).items()}
    about = _on_every_process(folder, lambda: read_description(folder))
    saved = {n: a for n, a in about["arrays"].items() if n.startswith(under)}
    _check_same_arrays(folder, saved, wanted)
    arrays = _read_verified(folder, saved, wanted)
    return jax.tree.unflatten(jax.tree.structure(layout), arrays.values())


def read_some(step_dir: epath.PathLike, wanted: Layout) -> dict[str, jax.Array]:
    """The arrays of these names, verified; no other is read.

    They must exist in these shapes; see `read_description`. Raises DamagedError.
    """
    folder = absolute(step_dir)
    saved = _on_every_process(folder, lambda: read_description(folder))["arrays"]
    return _read_verified(folder, saved, {name: _placed(x) for name, x in wanted.items()})


def _read_verified(
    folder: epath.Path, saved: Mapping[str, Any], wanted: Layout
) -> dict[str, jax.Array]:
    arrays = _on_every_process(folder, lambda: _read_arrays(folder, wanted))
    changed = [n for n, s in checksums(arrays).items() if s != saved[n]["checksum"]]
    if changed:
        some = ", ".join(changed[:MAX_DAMAGED_SHOWN])
        more = len(changed) - MAX_DAMAGED_SHOWN
        others = f" and {more} more" if more > 0 else ""
        raise DamagedError(folder, f"the checksum of {some}{others} does not match")
    return arrays


def _placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding = x.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    # An impossible sharding is our caller's error and must not look like damage later on.
    sharding.shard_shape(x.shape)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def check_layout(step_dir: epath.PathLike, layout: Any) -> None:
    """Raises the UserError of `read` unless the arrays match `layout`, without reading any."""
    saved = read_description(step_dir)["arrays"]
    _check_same_arrays(epath.Path(step_dir), saved, pytrees.flatten(layout))


def _check_same_arrays(folder: epath.Path, saved: dict[str, Any], wanted: Layout) -> None:
    """Raises UserError that lists the differences in names, shapes and types."""
    there = {name: f"{a['dtype']} {tuple(a['shape'])}" for name, a in saved.items()}
    here = {name: f"{x.dtype} {tuple(x.shape)}" for name, x in wanted.items()}
    differences = [
        f"  {name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in [*here, *(n for n in there if n not in here)]
        if there.get(name) != here.get(name)
    ]
    if not differences:
        return
    shown = differences[:MAX_DIFFERENCES_SHOWN]
    if len(differences) > len(shown):
        shown.append(f"  ... and {len(differences) - len(shown)} more")
    names = {name for name in there.keys() | here.keys() if there.get(name) != here.get(name)}
    of_optimizer = all(name.startswith(OPTIMIZER + "/") for name in names)
    raise UserError(
        f"The checkpoint {folder} is of another {'' if of_optimizer else 'model or '}optimizer "
        "than the config:\n"
        + "\n".join(shown)
        + "\nUse the config and the version that wrote it, or another --workdir"
        + (f", with --config.init.weights={folder}." if of_optimizer else ".")
    )


def _read_arrays(folder: epath.Path, wanted: Layout) -> dict[str, jax.Array]:
    """Names -> arrays as stored, in the order of `wanted`; not yet verified."""
    orbax_log.mute()
    restore = array_files.to_restore(pytrees.unflatten(dict(wanted)))
    try:
        # The handler and not a Checkpointer, whose barrier a process that fails would never reach.
        handler = array_files.StateHandler()
        found = pytrees.flatten(handler.restore(folder / STATE, args=restore))
    except (MemoryError, jax.errors.JaxRuntimeError):  # too little memory is not damage
        raise
    except Exception as error:  # damage can make orbax and tensorstore raise anything
        raise DamagedError(folder, f"its arrays cannot be read ({_root_cause(error)})") from error
    return {name: found[name] for name in wanted}


def _on_every_process(folder: epath.Path, read: Callable[[], T]) -> T:
    """The result of `read`, or DamagedError if any process raises that.

    All processes must go on with the same checkpoint, and run the same computations.
    """
    try:
        found, error = read(), None
    except DamagedError as caught:
        found, error = None, caught
    if jax.process_count() > 1:
        good = multihost_utils.process_allgather(np.array(error is None))
        if not good.all():
            raise error or DamagedError(
                folder, f"process {int(np.argmin(good))} could not read its part"
            )
    elif error:
        raise error
    return cast(T, found)


def _root_cause(error: BaseException) -> str:
    """The first line of the error that was the root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0][:MAX_CAUSE_CHARACTERS]


def _crc32(document: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(document, sort_keys=True).encode()):08x}"
