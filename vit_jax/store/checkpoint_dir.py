"""One checkpoint on disk, `<workdir>/checkpoints/<step>/`: its description, reading, verification.

    state/         the arrays (orbax), as nested plain dictionaries by name
    description/   JSON: the caller's entries (model fields, class names, preprocessing ...), and
                   "arrays": {name: {"shape", "dtype", "checksum"}}, "metrics", and
                   "crc32", over the JSON of all the rest

Arrays are identified by names ("params/head/bias"), not positions, so that neither the order of
keys nor the type of a container matters. A folder without a description is not a checkpoint.
"""

import errno
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, describe_error, system_words
from vit_jax.core.files import is_folder, is_remote, parse_json
from vit_jax.core.metric_names import best_mode
from vit_jax.store.metrics import METRICS_FILE, MetricsFile
from vit_jax.store.workdir import (
    CONFIG_FILE,
    check_name,
    explain_damage,
    read_document,
    save,
    steps,
)

Array = TypeVar("Array", np.ndarray, jax.Array)

SEEDS = (0x9E3779B9, 0x85EBCA77)  # arbitrary odd constants; part of the checkpoint's format
UINT_OF_BYTES = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
# On the host, a smaller array takes less time than compiling a program for its shape.
SMALL_BYTES = 2**20


def checksums(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """Arrays by name -> 16 hexadecimal digits by name. Waits for the arrays, moves only small ones.

    A checksum is computed on its array's devices without gathering. An element's bits are a 32-bit
    word w (narrower types are zero-extended, 64-bit types have two words) and its row-major index
    is i, modulo 2**32. Each of the two checksum words is

        sum over i of  mix(w ^ mix(i + seed))   modulo 2**32,

    with `mix` the finalizer of MurmurHash3 and a different seed for each word. Sums of integers do
    not depend on order, so it is the same for any sharding. Since `mix` is a bijection, a change of
    a single word is always detected, and by the index so are swapped elements; other damage goes
    undetected with probability about 2**-64.

    On several hosts every process must call it with the same names in the same order.
    """
    # One at a time: on CPUs, simulated devices share so few threads that several computations
    # deadlock, each with some of its devices waiting in an all-reduce.
    words = {name: _words_of(x) for name, x in arrays.items()}
    return {name: f"{a:08x}{b:08x}" for name, (a, b) in words.items()}


def _words_of(x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    is_here = x.is_fully_addressable or x.is_fully_replicated
    if is_here and x.nbytes < SMALL_BYTES:
        return _words_on_host(np.asarray(x))
    return jax.device_get(_words(x))


def _words_on_host(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    uint = np.dtype(UINT_OF_BYTES[min(x.dtype.itemsize, 4)])
    bits = np.ascontiguousarray(x).reshape(-1).view(uint).astype(np.uint32)
    index = np.arange(bits.size, dtype=np.uint32)
    first, second = (_mix(bits ^ _mix(index + np.uint32(s))).sum(dtype=np.uint32) for s in SEEDS)
    return first, second


@jax.jit
def _words(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[...] of any dtype -> the two words of its checksum, uint32 scalars."""
    bits = _bits(x)
    index = _row_major_index(bits.shape)
    terms = tuple(_mix(bits ^ _mix(index + jnp.uint32(seed))) for seed in SEEDS)
    # One reduction of pairs, not two sums: ten times as fast on CPUs, half the compile time.
    zero = jnp.uint32(0)
    return jax.lax.reduce(
        terms, (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), tuple(range(bits.ndim))
    )


def _bits(x: jax.Array) -> jax.Array:
    """The elements' bits as uint32, [...] -> [...], or [..., 2] for 64-bit types."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    return jax.lax.bitcast_convert_type(x, UINT_OF_BYTES[x.dtype.itemsize]).astype(jnp.uint32)


def _row_major_index(shape: tuple[int, ...]) -> jax.Array:
    """Each element's index, uint32 of `shape`; built per axis, so that it is sharded like x."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index + place * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return index


def _mix(word: Array) -> Array:
    """fmix32 of MurmurHash3 (A. Appleby, public domain): a bijection that spreads every bit."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


STATE = "state"
DESCRIPTION = "description"
PARAMS = "params"
OPTIMIZER = "opt_state"
_HEADS = frozenset({"head", "distillation_head"})
EMA = "ema"  # the parameters' moving average, if there is one
MAX_DAMAGED_SHOWN = 3  # arrays
# Errors of the machine or its storage, which tell nothing about a checkpoint's files.
_NOT_DAMAGE = (
    errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
    errno.ETIMEDOUT, errno.ENOTCONN,
)  # fmt: skip
MAX_DIFFERENCES_SHOWN = 20

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

    Of several steps it is the newest whose description is intact. A work directory may have @STEP
    or @best behind its name. What is taken instead of a damaged checkpoint is said in a notice.
    """
    name = os.fspath(path)
    if not name or (name[0] == "@" and not is_folder(epath.Path(name))):  # "$UNSET@40"
        raise UserError("The name of the checkpoint is empty: give a work directory.")
    folder = epath.Path(path)
    if "@" in folder.name and not is_folder(folder):
        return _named(folder)
    if is_folder(folder / DESCRIPTION):
        return folder
    directory = folder / "checkpoints"
    directory = directory if is_folder(directory) else folder
    if newest_first := steps(directory)[::-1]:
        return _described(directory, newest_first)
    absent = "" if folder.exists() else ", which does not exist"
    raise UserError(f"No checkpoint in {folder}{absent}. Give e.g. DIR or DIR/checkpoints/1000.")


def first_intact(
    directory: epath.Path, ordered_steps: Iterable[int], read: Callable[[epath.Path], T]
) -> tuple[int, T, list[DamagedError]]:
    """The first of these steps that `read` can read, its result, and the errors before it."""
    damaged: list[DamagedError] = []
    for step in ordered_steps:
        try:
            return step, read(directory / str(step)), damaged
        except DamagedError as error:
            damaged.append(error)
    lines = "".join(f"\n  {error.folder.name}: {error.reason}" for error in damaged)
    raise UserError(f"Every checkpoint in {directory} is damaged:{lines}\nTrain in another folder.")


def _described(directory: epath.Path, ordered_steps: Iterable[int]) -> epath.Path:
    """The folder of the first of these steps whose description is intact."""
    step, _, damaged = first_intact(directory, ordered_steps, read_description)
    for error in damaged:
        skipped = f"Notice: checkpoint {error.folder.name} is skipped: {error.reason}."
        print(f"{skipped} Step {step} is taken.", file=sys.stderr)
    return directory / str(step)


def metric_values(
    directory: epath.PathLike, metric: str, *, of_damaged: bool = False
) -> dict[int, float]:
    """The values of a metric, by step, of the checkpoints in `<workdir>/checkpoints` that have one.

    The log has that of a run that was stopped before its evaluation, or of a checkpoint that cannot
    be read.
    """
    folder = epath.Path(directory)
    rows = MetricsFile(folder.parent / METRICS_FILE).rows()
    logged = {row["step"]: row[metric] for row in rows if metric in row}
    values = {}
    for step in steps(folder):
        try:
            metrics = read_description(folder / str(step))["metrics"]
        except UserError as error:
            if isinstance(error, DamagedError) and not of_damaged:
                continue
            metrics = {}
        value = metrics.get(metric, logged.get(step))
        if value is not None:
            values[step] = value
    return values


def rank(values: Mapping[int, float], mode: str) -> list[int]:
    """The steps by their values and checkpoint.best_mode: the best first, of equals the newest."""
    sign = 1 if mode == "max" else -1
    return sorted(values, key=lambda step: (sign * values[step], step), reverse=True)


def _named(path: epath.Path) -> epath.Path:
    """The step's folder of DIR@STEP or DIR@best."""
    name, _, which = path.name.rpartition("@")
    folder = path.parent / name
    directory = folder / "checkpoints"
    saved, candidates, metric = steps(directory), list[int](), None
    if which == "best" and saved:
        with explain_damage(folder / CONFIG_FILE):
            config = read_document(folder)["config"].get("checkpoint", {})
            metric = config.get("best_metric")
            mode = metric and best_mode(metric, config["best_mode"])
        if metric is not None:
            candidates = rank(metric_values(directory, metric, of_damaged=True), mode)
    elif which.isdecimal() and int(which) in saved:
        return directory / which
    if not candidates:
        there = ", ".join(f"@{step}" for step in saved) or "none"
        rule = f"is not there, but {there}; @best is by checkpoint.best_metric, here {metric}."
        raise UserError(rule, field=str(path))
    return _described(directory, candidates)


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
    """The JSON of a checkpoint. Raises DamagedError if it is missing or was changed.

    UserError where only the machine or its storage keeps it from being read.
    """
    folder = epath.Path(step_dir)
    try:
        # The name that orbax's JsonSave gives.
        document = parse_json((folder / DESCRIPTION / "metadata").read_bytes())
        intact = document.pop("crc32") == _crc32(document)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        if unreadable := _unreadable(folder, error):
            raise unreadable from error
        raise DamagedError(folder, f"its description cannot be read ({error})") from error
    if not intact:
        raise DamagedError(folder, "its description has changed since it was written")
    return document


def amend(step_dir: epath.PathLike, entries: dict[str, Any]) -> None:
    """Sets entries of a checkpoint's description, at once; its arrays stay as they are."""
    document = read_description(step_dir) | entries
    document["crc32"] = _crc32(document)
    save(epath.Path(step_dir) / DESCRIPTION / "metadata", json.dumps(document))


def params_or_ema(step_dir: epath.PathLike, *, ema: bool) -> str:
    """The prefix of the wanted parameters' names. Raises UserError if they are missing."""
    if ema and not any(n.startswith(EMA + "/") for n in read_description(step_dir)["arrays"]):
        raise UserError(f"The checkpoint {step_dir} has no EMA: its run had no optim.ema_decay.")
    return EMA if ema else PARAMS


def read(step_dir: epath.PathLike, layout: Any) -> Any:
    """All arrays, verified, in the tree of `layout`. Raises UserError and DamagedError."""
    folder = absolute(step_dir)
    _on_every_process(folder, lambda: check_layout(folder, layout))
    arrays = read_some(folder, pytrees.flatten(layout))
    return jax.tree.unflatten(jax.tree.structure(layout), arrays.values())


def read_some(step_dir: epath.PathLike, wanted: Layout) -> dict[str, jax.Array]:
    """The arrays of these names, verified; no other is read.

    They must exist in these shapes; see `read_description`. One without a sharding goes to the
    first local device. Raises DamagedError.
    """
    folder = absolute(step_dir)
    saved = _on_every_process(folder, lambda: read_description(folder))["arrays"]
    placed = {name: _placed(x) for name, x in wanted.items()}
    arrays = _on_every_process(folder, lambda: _read_arrays(folder, placed))
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
    """Raises UserError that lists how names, shapes and types differ from those of `layout`."""
    saved, wanted = read_description(step_dir)["arrays"], pytrees.flatten(layout)
    there = {name: f"{a['dtype']} {tuple(a['shape'])}" for name, a in saved.items()}
    here = {name: f"{x.dtype} {tuple(x.shape)}" for name, x in wanted.items()}
    names = [name for name in here | there if there.get(name) != here.get(name)]
    if not names:
        return
    shown = [
        f"  {name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in names[:MAX_DIFFERENCES_SHOWN]
    ]
    if len(names) > len(shown):
        shown.append(f"  ... and {len(names) - len(shown)} more")
    parts = [name.split("/") for name in names]
    roots = {part[0] for part in parts}
    what = {(OPTIMIZER,): "optimizer", (EMA,): "moving average (optim.ema_decay)"}.get(
        tuple(roots), "model or optimizer"
    )
    is_of_head = [bool(_HEADS.intersection(p)) for p in parts if p[0] not in (OPTIMIZER, EMA)]
    start = ""
    if all(is_of_head):  # a new run makes the others anew: it can start from those that fit
        start = f", with --config.init.weights={step_dir}"
        start += " and --config.init.head=reset, for other classes" if is_of_head else ""
    raise UserError(
        f"The checkpoint {step_dir} is of another {what} than the config:\n"
        + "\n".join(shown)
        + f"\nUse the config and the version that wrote it, or another --workdir{start}."
    )


def _read_arrays(folder: epath.Path, wanted: Layout) -> dict[str, jax.Array]:
    """Names -> arrays as stored, in the order of `wanted`; not yet verified."""
    from vit_jax.store import array_files  # imports Orbax: other weights need none

    check_name(folder)
    array_files.mute_orbax()
    restore = array_files.to_restore(pytrees.unflatten(dict(wanted)))
    try:
        # The handler and not a Checkpointer, whose barrier a process that fails would never reach.
        handler = array_files.StateHandler()
        arrays = pytrees.flatten(handler.restore(folder / STATE, args=restore))
    except (MemoryError, jax.errors.JaxRuntimeError):  # too little memory is not damage
        raise
    except Exception as error:  # damage can make orbax and tensorstore raise anything
        if unreadable := _unreadable(folder, error):
            raise unreadable from error
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        said = (str(cause).splitlines() or [type(cause).__name__])[0][:200]
        raise DamagedError(folder, f"its arrays cannot be read ({said})") from error
    return {name: arrays[name] for name in wanted}


def _unreadable(folder: epath.Path, error: Exception) -> UserError | None:
    """The error for what keeps even an intact checkpoint from being read; None for damage."""
    from vit_jax.core import cloud  # needed on an error alone

    failed = cloud.failure(error) if is_remote(folder) else None
    words = system_words(error, _NOT_DAMAGE)
    if failed is not None and not cloud.is_missing(failed):
        words = describe_error(failed)
    rule = f"cannot be read: {words}. That says nothing of its contents."
    cure = "Start the same command again when it can; or move it away, for the one before it."
    return UserError(rule, field=f"The checkpoint {folder}", cure=cure) if words else None


def _on_every_process(folder: epath.Path, read: Callable[[], T]) -> T:
    """The result of `read`, or an error on all processes if it raises UserError on any.

    All processes must go on with the same checkpoint, and run the same computations: DamagedError
    where that is the worst that any process met.
    """
    result, error = None, None
    try:
        result = read()
    except UserError as caught:
        error = caught
    fault = 0 if error is None else 1 if isinstance(error, DamagedError) else 2
    faults = multihost_utils.process_allgather(np.array(fault)).ravel()
    worst = int(np.argmax(faults))
    if fault == faults[worst]:
        if error:
            raise error
        return cast(T, result)
    if faults[worst] == 1:
        raise DamagedError(folder, f"process {worst} could not read its part")
    raise UserError(f"Process {worst} cannot read the checkpoint {folder}: its message says why.")


def _crc32(document: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(document, sort_keys=True).encode()):08x}"
