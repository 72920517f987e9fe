"""Batches made on the devices, from images that lie there decoded: the host only names examples.

The pixels are those of the host's pipeline, bit for bit: a batch may come from either (feed.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.core import axes
from vit_jax.data.ops.device_ops import DeviceOps
from vit_jax.data.pipeline import NO_EXAMPLE, HostBatch
from vit_jax.data.source import NO_LABEL
from vit_jax.data.streams import Choose
from vit_jax.learning.feed import BadImages, Feed, local_rows
from vit_jax.learning.losses import Batch
from vit_jax.parallel.mesh import BATCH_AXES

# The names of a batch's arrays, by those of a decoded set.
_NAMES = {"image": "images", "labels": "labels", "label_weights": "label_weights"}


class Decoded(NamedTuple):
    """A decoded set."""

    # Images uint8 [n, H, W, 3], black where they are bad; labels int32 [n, K], -1 behind the last
    # one; weight float32 [n], 0 for a bad image, else 1; if the source is weighted, label_weights
    # float32 [n, K].
    arrays: dict[str, np.ndarray]
    faults: dict[int, str]  # of the bad images, by example

    @property
    def num_examples(self) -> int:
        """The number of examples, n."""
        return len(self.arrays["weight"])


class _Slots:
    """Iterates over a host's batches like pipeline.Batches, but they name examples, without pixels.

    A batch of b slots is a dictionary of arrays:

        example  int32   [b]             index of the example in the set; -1 for padding
        draws    float32 [b, num_draws]  the numbers of its random ops
        index    int64   [b]             as `example`
        weight   float32 [b]             1; 0 for a bad image, and for padding
    """

    def __init__(self, cached: CachedSet, choose: Choose, batches: Iterable[int]) -> None:
        self._cached, self._choose, self._batches = cached, choose, batches

    def __iter__(self) -> Iterator[HostBatch]:
        weights, num_rows = self._cached.weight, self._cached.num_rows
        for batch in self._batches:
            indices, seeds = self._choose(np.arange(batch * num_rows, (batch + 1) * num_rows))
            indices = np.where(indices < len(weights), indices, NO_EXAMPLE)
            yield {
                "example": indices.astype(np.int32),
                "draws": self._cached.ops.draw(seeds),
                "index": indices,
                "weight": np.where(indices < 0, np.float32(0), weights[indices]),
            }

    def bad_image(self, index: int) -> str:
        """The file and the fault of a bad image."""
        return self._cached.faults[index]

    def close(self) -> None:
        """Nothing is open."""


class CachedSet:
    """A decoded set on the devices of a mesh, and the ops that make a batch's images of its own.

    Every device has the whole set, or, if `is_divided`, a part of it, of as many parts as a batch
    has; then each adds what it has of a batch to what the others have.
    """

    def __init__(
        self, decoded: Decoded, ops: DeviceOps, layout: Batch, *, is_divided: bool
    ) -> None:
        sharding, (batch_size,) = layout["weight"].sharding, layout["weight"].shape
        assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
        self.ops, mesh = ops, sharding.mesh
        self.weight, self.faults = decoded.arrays["weight"], decoded.faults
        self.num_rows = len(local_rows(layout["weight"]))  # of a batch, that this host names
        self._parts = axes.num_devices(BATCH_AXES, mesh.shape) if is_divided else 1
        self._rows = -(-decoded.num_examples // self._parts)  # of a part
        set_spec, batch_spec = PartitionSpec(BATCH_AXES if is_divided else None), sharding.spec
        self._arrays = {
            name: self._place(array, NamedSharding(mesh, set_spec))
            for name, array in decoded.arrays.items()
        }
        self._slots = {
            "example": jax.ShapeDtypeStruct((batch_size,), jnp.int32, sharding=sharding),
            "draws": jax.ShapeDtypeStruct(
                (batch_size, ops.num_draws), jnp.float32, sharding=sharding
            ),
        }
        make = jax.shard_map(
            self._make,
            mesh=mesh,
            in_specs=(set_spec, batch_spec),
            out_specs=batch_spec,
            check_vma=False,
        )
        self._batch = jax.jit(make).lower(self._arrays, self._slots).compile()

    def feed(
        self,
        choose: Choose,
        batches: Iterable[int],
        *,
        timeout_secs: float,
        bad_images: BadImages | None = None,
    ) -> Feed:
        """A feed of these batches; `choose` gives the examples of this host's slots."""
        return Feed(
            _Slots(self, choose, batches),
            self._slots,
            timeout_secs=timeout_secs,
            bad_images=bad_images,
            finish=functools.partial(self._batch, self._arrays),
        )

    def _place(self, array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        shape = (self._rows * self._parts, *array.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first, stop, _ = index[0].indices(shape[0])
            there = np.asarray(array[first:stop])
            missing = stop - first - len(there)
            return np.pad(there, [(0, missing), *[(0, 0)] * (array.ndim - 1)]) if missing else there

        return jax.make_array_from_callback(shape, sharding, part)

    def _make(self, arrays: dict[str, jax.Array], slots: dict[str, jax.Array]) -> Batch:
        """A device's part of a batch."""
        stored = self._taken(arrays, slots["example"])
        weight = jnp.where(slots["example"] >= 0, stored["weight"], 0)
        stored["images"] = jax.vmap(self.ops.apply)(stored["images"], slots["draws"])
        empty = {"image": 0, "labels": NO_LABEL, "label_weights": 0}
        batch = {}
        for name, stored_name in _NAMES.items():
            if stored_name in stored:
                array = stored[stored_name]
                is_good = (weight > 0).reshape(-1, *(1,) * (array.ndim - 1))
                batch[name] = jnp.where(is_good, array, jnp.asarray(empty[name], array.dtype))
        return batch | {"weight": weight}

    def _taken(self, arrays: dict[str, jax.Array], examples: jax.Array) -> dict[str, jax.Array]:
        """The rows of these examples, int32 [b]; any row for padding."""
        if self._parts == 1:
            return {name: array[jnp.maximum(examples, 0)] for name, array in arrays.items()}
        wanted = jax.lax.all_gather(examples, BATCH_AXES, tiled=True)
        places = wanted - jax.lax.axis_index(BATCH_AXES) * self._rows
        is_here = (places >= 0) & (places < self._rows)

        def taken(array: jax.Array) -> jax.Array:
            rows = array[jnp.clip(places, 0, self._rows - 1)]
            rows = jnp.where(is_here.reshape(-1, *(1,) * (array.ndim - 1)), rows, 0)
            # All but one of the summands are 0.
            return jax.lax.psum_scatter(rows, BATCH_AXES, tiled=True)

        return {name: taken(array) for name, array in arrays.items()}
