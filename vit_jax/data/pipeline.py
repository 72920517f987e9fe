"""Batches of pixels: from a source, through tf.data, to dictionaries of numpy arrays.

Training: example k of step s (from 0) is position `s * batch_size + k` of a stream
(order/streams.py), and its random numbers come from (seed, round, example index), a round being an
epoch or one of its copies: a batch is a function of (seed, step), whatever the number of hosts and
threads. Evaluation: every example once, in order.

A host makes its own slots of each global batch only. tf.data runs in threads of its own, so the
next batches are made while the accelerator computes.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.bad_images import first_bad_image, pixels_of, zero_if_bad
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table as ops
from vit_jax.data.order.streams import Stream, shuffled
from vit_jax.data.reader import READ_EXAMPLES, Choose, Elements, Reader
from vit_jax.data.source import NO_LABEL, Source

NO_EXAMPLE = -1  # the index of padding
_PREFETCH_BATCHES = 2
_ENDLESS = 2**62

Decode = Callable[[tf.data.Dataset, Reader, ops.Preprocess, int], tf.data.Dataset]
SlotFunction = Callable[[Elements], dict[str, tf.Tensor]]
HostBatch = dict[str, np.ndarray]

# Nothing here is for autograph to rewrite: tracing takes half as long, and no files.
_traced_as_it_is = tf.autograph.experimental.do_not_convert


def train_batches(
    source: Source,
    preprocess: str,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    on_bad_image: str,
    max_image_pixels: int,
    threads: int,
    rows: np.ndarray | None = None,
    stream: Stream | None = None,
) -> Batches:
    """The host's part of the batches of steps `start_step`, `start_step + 1`, ... without end.

    `batch_size` is global; this host makes the slots `rows`, int64 [b] in rising order, of every
    batch; None: all of them. `threads` 0 means one a core. `stream` maps positions to
    examples; None: all of them, shuffled, epoch by epoch. See `Batches` for the rest.
    """
    rows = np.arange(batch_size) if rows is None else rows
    stream = stream or shuffled(source.num_examples, seed=seed)
    return _batches(
        Reader(source, train_slots(stream, rows, batch_size, seed), max_image_pixels),
        ops.parse(preprocess),
        first_slot=start_step * len(rows),
        num_slots=None,
        num_batches=None,
        batch_size=len(rows),
        on_bad_image=on_bad_image,
        threads=threads,
    )


def eval_batches(
    source: Source,
    preprocess: str,
    *,
    batch_size: int,
    on_bad_image: str,
    max_image_pixels: int,
    threads: int,
    rows: np.ndarray | None = None,
    whole_images: bool = False,
) -> Batches:
    """The host's part of the batches that hold every example once, in order.

    Every host makes the same number of batches; the last one is filled up with padding. Arguments
    as in `train_batches`; `whole_images`: see Preprocess.of_whole_images.
    """
    parsed = ops.parse(preprocess)
    rows = np.arange(batch_size) if rows is None else rows
    num_slots, num_batches = eval_counts(source.num_examples, rows, batch_size)
    return _batches(
        Reader(source, eval_slots(rows, batch_size), max_image_pixels),
        parsed.of_whole_images() if whole_images else parsed,
        first_slot=0,
        num_slots=num_slots,
        num_batches=num_batches,
        batch_size=len(rows),
        on_bad_image=on_bad_image,
        threads=threads,
    )


def train_slots(stream: Stream, rows: np.ndarray, batch_size: int, seed: int) -> Choose:
    """Chooses the example and the seed of each slot of a host that makes `rows` of a batch."""

    def choose(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps, places = np.divmod(slots, len(rows))
        rounds, indices = stream(steps * batch_size + rows[places])
        return indices, _seeds(seed, rounds, indices)

    return choose


def eval_slots(rows: np.ndarray, batch_size: int) -> Choose:
    """Like `train_slots`, for batches that hold the examples in order."""

    def choose(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batches, places = np.divmod(slots, len(rows))
        indices = batches * batch_size + rows[places]
        return indices, _seeds(0, np.zeros_like(indices), indices)

    return choose


def eval_counts(num_examples: int, rows: np.ndarray, batch_size: int) -> tuple[int, int]:
    """(slots with an example of the host that makes `rows`, batches of every host)."""
    num_full, num_last = divmod(num_examples, batch_size)
    return num_full * len(rows) + int(np.sum(rows < num_last)), num_full + (num_last > 0)


def _seeds(seed: int, rounds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """A seed for each example of each round, int64 [n, 2]; leaves room for the positions of ops."""
    return np.stack([seed * 2**32 + rounds, indices * 2**8], axis=1)


def _batches(
    reader: Reader,
    preprocess: ops.Preprocess,
    *,
    first_slot: int,
    num_slots: int | None,
    num_batches: int | None,
    batch_size: int,
    on_bad_image: str,
    threads: int,
) -> Batches:
    stop = _ENDLESS if num_slots is None else first_slot + num_slots
    threads = threads or os.cpu_count() or 1

    def dataset(first: int, decode: Decode) -> tf.data.Dataset:
        slots = decode(_elements(reader, first, stop, threads), reader, preprocess, threads)
        return slots.batch(batch_size).prefetch(_PREFETCH_BATCHES).with_options(_options(threads))

    is_skipping = False

    def recover(batch: int, error: Exception) -> tf.data.Dataset:
        nonlocal is_skipping
        first = first_slot + batch * batch_size
        if reader.failure:
            raise reader.failure from error
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise error  # the fault of no image
        if on_bad_image == "fail" or is_skipping:
            last = min(first + batch_size, stop)
            raise first_bad_image(reader, preprocess, first, last) or error from error
        is_skipping = True
        return dataset(first, _decoded_or_skipped)

    return Batches(
        dataset(first_slot, _decoded),
        batch_size=batch_size,
        num_batches=num_batches,
        recover=recover,
        bad_image=lambda index: f"{reader.source.describe(index)}: {reader.faults[index]}",
    )


def _elements(reader: Reader, first: int, stop: int, threads: int) -> tf.data.Dataset:
    """Encoded examples, one by one, in the order of their slots."""
    source = reader.source
    signature = Elements(
        data=tf.TensorSpec([None], tf.string),
        size=tf.TensorSpec([None, 2], tf.int32),
        orientation=tf.TensorSpec([None], tf.int32),
        labels=tf.TensorSpec([None, source.max_labels], tf.int32),
        example=tf.TensorSpec([None], tf.int64),
        seed=tf.TensorSpec([None, 2], tf.int64),
        label_weights=(
            tf.TensorSpec([None, source.max_labels], tf.float32) if source.weighted else ()
        ),
    )
    specs = tf.nest.flatten(signature)

    @_traced_as_it_is
    def read(start: tf.Tensor) -> Elements:
        arrays = tf.numpy_function(
            lambda start: tf.nest.flatten(reader.read(start, min(start + READ_EXAMPLES, stop))),
            [start],
            [spec.dtype for spec in specs],
        )
        for array, spec in zip(arrays, specs, strict=True):
            array.set_shape(spec.shape)
        return Elements(*arrays)

    starts = tf.data.Dataset.range(first, stop, READ_EXAMPLES)
    return starts.map(read, num_parallel_calls=threads, deterministic=True).unbatch()


def _decoded(
    elements: tf.data.Dataset, reader: Reader, preprocess: ops.Preprocess, threads: int
) -> tf.data.Dataset:
    """Slots of a batch, one by one: the arrays of `Batches`, without the leading axis."""
    good, _ = _slot_functions(reader, preprocess)
    return elements.map(good, num_parallel_calls=threads, deterministic=True)


def _decoded_or_skipped(
    elements: tf.data.Dataset, reader: Reader, preprocess: ops.Preprocess, threads: int
) -> tf.data.Dataset:
    """Like `_decoded`, but a bad image becomes a slot of weight 0.

    A dataset for each example keeps an error from taking its slot away with it. That costs about
    0.15 ms of CPU time an example, so it is done from the first bad image on, not before. A bad
    image is done twice: the second time distinguishes it from one that memory ran out for.
    """
    good, bad = _slot_functions(reader, preprocess)

    @_traced_as_it_is
    def good_or_bad(e: Elements) -> tf.data.Dataset:
        one = tf.data.Dataset.from_tensors(e)
        decoded = one.map(good).ignore_errors(log_warning=False)
        return decoded.concatenate(one.map(bad)).take(1)

    return elements.interleave(
        good_or_bad, cycle_length=threads, num_parallel_calls=threads, deterministic=True
    )


def _slot_functions(
    reader: Reader, preprocess: ops.Preprocess
) -> tuple[SlotFunction, SlotFunction]:
    """The functions that make a slot of an element: for a good image, and for a bad one."""
    size = preprocess.output_size
    if size is None:
        raise UserError(
            "input.preprocess must end in images of one size: add resize(224) or central_crop(224)."
        )

    source = reader.source
    no_labels = np.full(source.max_labels, NO_LABEL, np.int32)
    no_weights = np.zeros(source.max_labels, np.float32)

    def labels(classes: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"labels": classes} | ({"label_weights": weights} if source.weighted else {})

    @_traced_as_it_is
    def good(e: Elements) -> dict[str, tf.Tensor]:
        image = pixels_of(e, reader, preprocess)
        return {
            "image": tf.ensure_shape(image, (*size, 3)),
            "weight": tf.constant(1.0),
            "index": e.example,
            **labels(e.labels, e.label_weights),
        }

    @_traced_as_it_is
    def bad(e: Elements) -> dict[str, tf.Tensor]:
        # Good images that memory ran out for must not end here.
        weight = tf.numpy_function(
            lambda *arrays: zero_if_bad(Elements(*arrays), reader, preprocess),
            tf.nest.flatten(e),
            tf.float32,
        )
        return {
            "image": tf.zeros((*size, 3), tf.uint8),
            "weight": tf.ensure_shape(weight, []),
            "index": e.example,
            **labels(tf.constant(no_labels), tf.constant(no_weights)),
        }

    return good, bad


def _options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # nothing to tune: all stages share these threads
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return options


class Batches:
    """Iterator over batches of one host, b examples each; also a context manager.

    A batch is a dictionary of arrays (read-only where tf.data made them):

        image   uint8   [b, H, W, 3]
        labels  int32   [b, K]   classes; -1 behind the last one
        weight  float32 [b]      1; 0 for a bad image that is skipped, and for padding
        index   int64   [b]      index of the example in the source; -1 for padding

    and, if the source is weighted:

        label_weights  float32  [b, K]  weights of these labels, in [0, 1]; 0 behind the last one

    A slot of weight 0 has a black image and no labels. `num_bad` counts the skipped images so far;
    `bad_image(index)` gives the location and the fault of one of them.
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

    def __next__(self) -> HostBatch:
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


def _padded(batch: HostBatch, batch_size: int) -> HostBatch:
    """Pads with slots of weight 0 behind the examples, up to `batch_size`."""
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
