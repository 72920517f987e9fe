"""Writing and reading of a state's arrays in chunks, with a bound on the bytes in flight.

By default orbax has all arrays of a state in flight at once. While saving, their compressed copies
take 0.9 x the state of host memory beside the copy that is being saved; while restoring, the read
buffers take as much beside the arrays. Here at most IN_FLIGHT_BYTES are in flight
(benchmarks/checkpointing.py measures it). Chunks of CHUNK_BYTES let several cores compress one
array, and a process that needs a part of it read little more than that part.
"""

import math
from collections.abc import Iterable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

CHUNK_BYTES = 16 * 2**20
IN_FLIGHT_BYTES = 256 * 2**20  # in each process; more if a single array is larger


class StateHandler(ocp.AsyncCheckpointHandler):
    """Writes and reads nested dictionaries of arrays; called by orbax's CheckpointManager."""

    async def async_save(self, directory: epath.Path, args: ocp.args.PyTreeSave) -> Any:
        """Copies the arrays and returns an awaitable that completes their files."""
        arrays = jax.tree.leaves(args.item)
        # A limit below the largest part that is written at once would be an error, not a wait.
        self._writer = _handler(math.prod(_shard_shape(x)) * x.dtype.itemsize for x in arrays)
        return await self._writer.async_save(directory, args=args)

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
        found = reader.restore(directory, args=args)
        reader.close()
        return found


def to_save(state: Any) -> ocp.args.PyTreeSave:
    """The arguments with which a CheckpointManager saves a nested dictionary of arrays."""
    in_pieces = lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES)
    return ocp.args.PyTreeSave(state, save_args=jax.tree.map(in_pieces, state))


def to_restore(layout: Any) -> ocp.args.PyTreeRestore:
    """The arguments of `StateHandler.restore`; layout: a part of the state, with shardings."""
    return ocp.args.PyTreeRestore(
        item=layout,
        restore_args=ocp.checkpoint_utils.construct_restore_args(layout),
        partial_restore=True,
    )


def _shard_shape(x: jax.Array) -> tuple[int, ...]:
    return x.sharding.shard_shape(x.shape)


def _handler(nbytes: Iterable[int]) -> ocp.PyTreeCheckpointHandler:
    in_flight = max(IN_FLIGHT_BYTES, 1 + max(nbytes, default=0))
    impl = ocp.BasePyTreeCheckpointHandler(
        save_concurrent_bytes=in_flight, restore_concurrent_bytes=in_flight
    )
    return ocp.PyTreeCheckpointHandler(handler_impl=impl)
