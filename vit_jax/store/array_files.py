"""Writing and reading of a state's arrays in chunks, with a bound on the bytes in flight.

By default orbax has all arrays of a state in flight at once, which takes 0.9 x the state of host
memory while saving, and as much while restoring (benchmarks/checkpointing.py). Chunks of
CHUNK_BYTES let several cores compress one array, and a process that needs a part read little more.
"""

import dataclasses
import logging
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath

CHUNK_BYTES = 16 * 2**20
IN_FLIGHT_BYTES = 256 * 2**20  # in each process; more if a single array is larger

ORBAX = f"{os.sep}orbax{os.sep}checkpoint{os.sep}"
_print_unraisable = sys.unraisablehook


@dataclasses.dataclass
class _ReportedFuture:
    """A future of orbax, whose error `report` gets as well."""

    future: Any
    report: Callable[[BaseException], None]

    def result(self, timeout: float | None = None) -> Any:
        try:
            return self.future.result(timeout)
        except BaseException as error:
            self.report(error)
            raise


class StateHandler(ocp.AsyncCheckpointHandler):
    """Writes and reads nested dictionaries of arrays; called by orbax's CheckpointManager.

    Attributes:
      errors: of writing, at once. Orbax raises them when all processes have come, or ten minutes
        later.
    """

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    async def async_save(self, directory: epath.Path, args: ocp.args.PyTreeSave) -> Any:
        """Copies the arrays and returns an awaitable that completes their files."""
        arrays = jax.tree.leaves(args.item)
        # A limit below the largest part that is written at once would be an error, not a wait.
        shapes = [x.sharding.shard_shape(x.shape) for x in arrays]
        self._writer = _handler(
            math.prod(shape) * x.dtype.itemsize for shape, x in zip(shapes, arrays, strict=True)
        )
        futures = await self._writer.async_save(directory, args=args)
        return [_ReportedFuture(future, self.errors.append) for future in futures or ()]

    def finalize(self, directory: epath.Path) -> None:
        """Merges the files of all processes; called once all have written."""
        self._writer.finalize(directory)
        self._writer.close()

    def save(self, directory: epath.Path, args: ocp.args.PyTreeSave) -> None:
        """Unused: every save is asynchronous."""
        raise NotImplementedError

    def restore(self, directory: epath.Path, args: ocp.args.PyTreeRestore) -> Any:
        """The arrays of args.item (of jax.ShapeDtypeStruct), each shard read on its device."""
        arrays = jax.tree.leaves(args.item)
        # A process that needs a part may have to read all, if it was saved in one chunk.
        reader = _handler(x.size * x.dtype.itemsize for x in arrays)
        restored = reader.restore(directory, args=args)
        reader.close()
        return restored


def to_save(state: Any) -> ocp.args.PyTreeSave:
    """The arguments with which a CheckpointManager saves a nested dictionary of arrays."""
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), state)
    return ocp.args.PyTreeSave(state, save_args=save_args)


def to_restore(layout: Any) -> ocp.args.PyTreeRestore:
    """The arguments of `StateHandler.restore`; layout: a part of the state, with shardings."""
    return ocp.args.PyTreeRestore(
        item=layout,
        restore_args=ocp.checkpoint_utils.construct_restore_args(layout),
        partial_restore=True,
    )


def _handler(nbytes: Iterable[int]) -> ocp.PyTreeCheckpointHandler:
    in_flight = max(IN_FLIGHT_BYTES, 1 + max(nbytes, default=0))
    impl = ocp.BasePyTreeCheckpointHandler(
        save_concurrent_bytes=in_flight, restore_concurrent_bytes=in_flight
    )
    return ocp.PyTreeCheckpointHandler(handler_impl=impl)


def mute_orbax() -> None:
    """Silences orbax's log, unless absl's verbosity is INFO or more (--verbosity=0).

    Orbax logs every failure that it also raises, and the other reads and writes in flight complain
    about their closed event loop.
    """
    global _print_unraisable
    # The same function added twice counts once.
    absl_logging.get_absl_logger().addFilter(_passes)
    logging.getLogger("asyncio").addFilter(_passes)
    if not _is_verbose():
        never = "coroutine 'async_serialize.* was never awaited"
        warnings.filterwarnings("ignore", never, RuntimeWarning)
    if sys.unraisablehook is not _unraisable:
        _print_unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable


def _is_verbose() -> bool:
    return absl_logging.get_verbosity() >= absl_logging.INFO


def _passes(record: logging.LogRecord) -> bool:
    unfetched = "exception was never retrieved" in record.getMessage()
    return _is_verbose() or not (
        unfetched if record.name == "asyncio" else ORBAX in record.pathname
    )


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    frames = traceback.extract_tb(unraisable.exc_traceback)
    from_orbax = any(ORBAX in frame.filename for frame in frames)
    closed = str(unraisable.exc_value) == "Event loop is closed"
    if _is_verbose() or not (from_orbax or closed):
        _print_unraisable(unraisable)
