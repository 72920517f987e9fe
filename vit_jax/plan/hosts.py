"""Needs of each host: memory for saving and reading, and images per second."""

import collections
import math
from typing import NamedTuple

import jax

from vit_jax.training.objective import Batch
from vit_jax.training.state import StateLayout

# Memory of saving L/16, in multiples of the saved bytes (BENCHMARKS.md): the copy that files are
# written from, and the data being compressed.
SAVING_FACTOR = 1.27
# Batches in a host's memory at once: two that tf.data has ready, one that it is making, and
# one that is being copied to the devices (data/pipeline.py, feed.py).
BATCHES = 4
_INDEX_BYTES = 8  # for each example, on the host alone


class HostNeeds(NamedTuple):
    """Needs of the host that needs the most.

    Attributes:
      images: the images of each batch that it reads.
      input_bytes: size of the batches in its memory; files and images being decoded are excluded,
        since only the data determine their sizes.
      saving_bytes: memory while a checkpoint is written.
    """

    images: int
    input_bytes: int
    saving_bytes: int


def needs(layout: StateLayout, batch: Batch) -> HostNeeds:
    """The needs of a run; shardings of layout and batch may be over absent devices."""
    copied = sum(_copied_bytes(x) for x in jax.tree.leaves(layout.state))
    images = _rows(batch["weight"])
    a_row = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in batch.values()) + _INDEX_BYTES
    return HostNeeds(images, BATCHES * images * a_row, round(SAVING_FACTOR * copied))


def _rows(array: jax.ShapeDtypeStruct) -> int:
    """Rows of a global array that the devices of one host hold."""
    assert array.sharding is not None
    of_hosts = collections.defaultdict(set)
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        of_hosts[device.process_index].add(index[0].indices(array.shape[0])[:2])
    return max(sum(stop - start for start, stop in parts) for parts in of_hosts.values())


def _copied_bytes(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array that a host copies to save it.

    Devices that hold the same share the work where a side divides by their number; else one of
    them copies all of it. (That is orbax's default, except on GPUs, where it is always one.)
    """
    assert array.sharding is not None
    devices = array.sharding.device_set
    shape = array.sharding.shard_shape(array.shape)
    nbytes = math.prod(shape) * array.dtype.itemsize
    parts = math.prod(array.shape) // max(math.prod(shape), 1)
    alike = len(devices) // max(parts, 1)
    hosts = collections.Counter(device.process_index for device in devices)
    of_one = max(hosts.values())
    if any(side % alike == 0 for side in shape):
        return nbytes * of_one // alike
    return nbytes * min(of_one, parts)
