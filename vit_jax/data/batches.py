"""Taking batches out of tf.data: numpy arrays, and clean ends, failures and closing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from vit_jax.data.host_tf import tf

NO_LABEL = -1
NO_EXAMPLE = -1

Batch = dict[str, np.ndarray]


class Batches:
    """Iterator over batches of one host, b examples each; also a context manager.

    A batch is a dictionary of arrays (read-only where tf.data made them):

        image   uint8   [b, H, W, 3]
        labels  int32   [b, K]   classes; -1 behind the last one
        weight  float32 [b]      1; 0 for a bad image that is skipped, and for padding
        index   int64   [b]      which example of the source; -1 for padding

    and, if the source is weighted, of these labels:

        label_weights  float32  [b, K]  in [0, 1]; 0 behind the last one

    A slot of weight 0 has a black image and no labels. `num_bad` counts the skipped images so far;
    `bad_image(index)` says of one where it is stored and what is wrong with it.
    UserError for a corrupt record, and for a bad image if that is not to be skipped.

    Close it, or leave its `with` block: a process must not end while tf.data still calls Python.
    At the latest that happens when it is collected or the interpreter exits.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        batch_size: int,
        num_batches: int | None,
        recover: Callable[[int, Exception], tf.data.Dataset],
        bad_image: Callable[[int], str],
    ) -> None:
        """`num_batches` None: endless. `recover(batch, error)` is asked when tf.data fails to make
        that batch, counted from 0: it raises, or returns a dataset that goes on there."""
        self.num_bad = 0
        self.bad_image = bad_image
        self._batch_size = batch_size
        self._num_batches = num_batches
        self._recover = recover
        self._made = 0
        self._empty = {
            name: np.zeros((0, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
            for name, spec in dataset.element_spec.items()
        }
        # TensorFlow stops the threads of a dataset with the last reference to it: those in here.
        self._open: dict[str, Any] = {}
        weakref.finalize(self, self._open.clear)
        self._start(dataset)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        iterator = self._open.get("iterator")  # another thread may close it at any time
        if iterator is None or self._made == self._num_batches:
            raise StopIteration
        try:
            batch = next(iterator, self._empty)
        except tf.errors.OpError as error:
            self.close()
            self._start(self._recover(self._made, error))
            return next(self)
        self._made += 1
        self.num_bad += int(np.sum(batch["weight"] == 0))
        return _padded(batch, self._batch_size)

    def _start(self, dataset: tf.data.Dataset) -> None:
        self._open.update(dataset=dataset, iterator=dataset.as_numpy_iterator())

    def close(self) -> None:
        """Stops the threads and frees the buffers; the iteration is over. May be called again."""
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _padded(batch: Batch, batch_size: int) -> Batch:
    """With slots of weight 0 behind the examples, up to `batch_size`."""
    missing = batch_size - len(batch["index"])
    if missing == 0:
        return batch
    fill = {"labels": NO_LABEL, "index": NO_EXAMPLE}
    return {
        name: np.concatenate(
            [array, np.full((missing, *array.shape[1:]), fill.get(name, 0), array.dtype)]
        )
        for name, array in batch.items()
    }
