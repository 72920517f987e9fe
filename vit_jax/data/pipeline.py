"""Batches of pixels: from a source, through tf.data, to dictionaries of numpy arrays.

Training: example k of step s (from 0) is position `s * batch_size + k` of a stream (streams.py),
and its random numbers come from (seed, round, example index): a batch is a function of (seed,
step), whatever the number of hosts and threads. Evaluation: every example once, in order. A host
makes its own slots of each global batch only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from vit_jax.core import machine
from vit_jax.core.errors import UserError
from vit_jax.data.host_tf import tf
from vit_jax.data.ops import table as ops
from vit_jax.data.ops.table import IMAGE, Views, parse_views
from vit_jax.data.reader import READ_EXAMPLES, Elements, Encoded, Reader
from vit_jax.data.source import NO_LABEL, Source
from vit_jax.data.streams import Stream, eval_counts, eval_slots, shuffled, train_slots

NO_EXAMPLE = -1  # the index of padding
_PREFETCH_BATCHES = 2
_ENDLESS = 2**62

HostBatch = dict[str, np.ndarray]


def _without_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Traces a function as it is: that takes half as long as with autograph, and no files."""
    return tf.autograph.experimental.do_not_convert(function)


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
    views: Mapping[str, str] = {},
) -> Batches:
    """The host's part of the batches of steps `start_step`, `start_step + 1`, ... without end.

    `batch_size` is global; this host makes the slots `rows`, int64 [b] in rising order, of every
    batch; None: all. `threads` 0 means one a core. `stream` maps positions to examples; None: all,
    shuffled. `views`: ops of further views of each image, by their names in a batch.
    """
    rows = np.arange(batch_size) if rows is None else rows
    stream = stream or shuffled(source.num_examples, seed=seed)
    return Batches(
        Reader(source, train_slots(stream, rows, batch_size, seed), max_image_pixels),
        parse_views(preprocess, views, source.pixels),
        first_slot=start_step * len(rows),
        batch_size=len(rows),
        on_bad_image=on_bad_image,
        threads=threads,
    )


def eval_batches(
    source: Source,
    preprocess: str | ops.Preprocess,
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
    parsed = ops.parse(preprocess) if isinstance(preprocess, str) else preprocess
    parsed = parsed.of_whole_images() if whole_images else parsed
    rows = np.arange(batch_size) if rows is None else rows
    num_slots, num_batches = eval_counts(source.num_examples, rows, batch_size)
    return Batches(
        Reader(source, eval_slots(rows, batch_size), max_image_pixels),
        Views({IMAGE: parsed}, source.pixels),
        batch_size=len(rows),
        on_bad_image=on_bad_image,
        threads=threads,
        stop=num_slots,
        num_batches=num_batches,
    )


def _elements(reader: Reader, first: int, stop: int, threads: int) -> tf.data.Dataset:
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
        maps=tf.TensorSpec([None, len(source.maps)], tf.string) if source.maps else (),
    )
    specs = tf.nest.flatten(signature)

    @_without_autograph
    def read(start: tf.Tensor, step: tf.Tensor) -> Elements:
        arrays = tf.numpy_function(
            lambda start, step: tf.nest.flatten(reader.read(start, min(start + step, stop))),
            [start, step],
            [spec.dtype for spec in specs],
        )
        for array, spec in zip(arrays, specs, strict=True):
            array.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(signature, arrays)

    @_without_autograph
    def starts(slot: tf.Tensor) -> tf.data.Dataset:
        step = tf.numpy_function(lambda x: np.int64(reader.examples_at_once(x)), [slot], tf.int64)
        step = tf.ensure_shape(step, [])
        each = _without_autograph(lambda start: (start, step))
        return tf.data.Dataset.range(slot, stop, step).map(each)

    reads = tf.data.Dataset.from_tensors(tf.constant(first, tf.int64)).flat_map(starts)
    return reads.map(read, num_parallel_calls=threads, deterministic=True).unbatch()


def _slots(
    decoder: _Decoder, elements: tf.data.Dataset, is_skipping: bool, threads: int
) -> tf.data.Dataset:
    """Slots of a batch, one by one: the arrays of `Batches`, without the leading axis.

    If `is_skipping`, a bad image becomes a slot of weight 0. A dataset for each example keeps an
    error from taking its slot away with it, which costs 0.15 ms of CPU time: it is done from the
    first bad image on. A second attempt distinguishes it from one that memory ran out for.
    """
    good, bad = map(_without_autograph, (decoder.good, decoder.bad))
    if not is_skipping:
        return elements.map(good, num_parallel_calls=threads, deterministic=True)

    @_without_autograph
    def good_or_bad(e: Elements) -> tf.data.Dataset:
        one = tf.data.Dataset.from_tensors(e)
        decoded = one.map(good).ignore_errors(log_warning=False)
        return decoded.concatenate(one.map(bad)).take(1)

    return elements.interleave(
        good_or_bad, cycle_length=threads, num_parallel_calls=threads, deterministic=True
    )


class _Decoder:
    """Slots of elements; of a bad image, a second attempt confirms that, and explains why."""

    def __init__(self, reader: Reader, views: Views) -> None:
        self.reader, self.views = reader, views

    def good(self, e: Elements) -> dict[str, tf.Tensor]:
        """The slot of a good image."""
        spatial = self._pixels(e) | self._maps(e)
        return self._slot(e, spatial, tf.constant(1.0), e.labels, e.label_weights)

    def bad(self, e: Elements) -> dict[str, tf.Tensor]:
        """The slot of a bad image. Good images that memory ran out for must not end here."""
        weight = tf.numpy_function(
            lambda *arrays: self._zero_if_bad(tf.nest.pack_sequence_as(e, arrays)),
            tf.nest.flatten(e),
            tf.float32,
        )
        num_labels, shapes = self.reader.source.max_labels, self.views.shapes
        maps = {kind.name: shapes[IMAGE][:2] for kind in self.reader.source.maps}
        return self._slot(
            e,
            {name: tf.zeros(s, self.views.pixels.dtype) for name, s in shapes.items()}
            | {name: tf.zeros(shape, tf.uint16) for name, shape in maps.items()},
            tf.ensure_shape(weight, []),
            tf.fill([num_labels], NO_LABEL),
            tf.zeros([num_labels]),
        )

    def first_bad_image(self, first: int, stop: int) -> UserError | None:
        """The first of the slots [first, stop) whose image fails again, as an error."""
        for start in range(first, stop, READ_EXAMPLES):
            elements = self.reader.read(start, min(start + READ_EXAMPLES, stop))
            for arrays in zip(*tf.nest.flatten(elements), strict=True):
                e = tf.nest.pack_sequence_as(elements, arrays)
                if fault := self._fault(e):
                    where = self.reader.source.describe(int(e.example))
                    cure = 'input.on_bad_image="skip" gives such images weight 0.'
                    return UserError(f"is a bad image: {fault}.", field=where, cure=cure)
        return None

    def _pixels(self, e: Elements) -> dict[str, tf.Tensor]:
        return self.views(
            Encoded(e.data, tf.convert_to_tensor(e.size), e.orientation),
            tf.convert_to_tensor(e.seed),
            max_image_pixels=self.reader.max_image_pixels,
        )

    def _maps(self, e: Elements) -> dict[str, tf.Tensor]:
        """The maps of the image, uint16 [h, w] each, by their names; none costs nothing."""

        def values(place: int) -> tf.Tensor:
            flat = tf.io.decode_raw(e.maps[place], tf.uint16)
            return tf.ensure_shape(tf.reshape(flat, [e.size[0], e.size[1], 1]), [None, None, 1])

        return {
            kind.name: self.views.on_map(values(place), e.seed)
            for place, kind in enumerate(self.reader.source.maps)
        }

    def _slot(
        self,
        e: Elements,
        views: dict[str, tf.Tensor],
        weight: tf.Tensor,
        labels: tf.Tensor,
        label_weights: Any,
    ) -> dict[str, tf.Tensor]:
        slot = {**views, "weight": weight, "index": e.example, "labels": labels}
        return slot | ({"label_weights": label_weights} if self.reader.source.weighted else {})

    def _zero_if_bad(self, e: Elements) -> np.float32:
        """The weight of a bad image, whose fault is noted; MemoryError if the image is good."""
        index, reader = int(e.example), self.reader
        try:
            fault = self._fault(e)
            if fault is None:
                where = reader.source.describe(index)
                raise MemoryError(f"{where} failed once, but is a good image: fewer input.threads.")
            reader.faults.setdefault(index, fault)  # the image comes again in each epoch
        except Exception as error:
            reader.failure = reader.failure or error
            raise
        return np.float32(0)

    def _fault(self, e: Elements) -> str | None:
        """The fault of an example's image, found by a second attempt; None if it has none."""
        try:
            self._pixels(e)
        except tf.errors.ResourceExhaustedError:
            raise
        except tf.errors.OpError as error:
            # The first line, without the names that TensorFlow puts around it.
            sentence = error.message.split("}}")[-1].split("[Op:")[0].split("\n")[0].strip(" .")
            return self.reader.header_fault(int(e.example)) or sentence
        return None


class Batches:
    """Iterator over batches of one host, b examples each; also a context manager.

    A batch is a dictionary of arrays (read-only where tf.data made them):

        image   uint8   [b, H, W, 3]
        labels  int32   [b, K]   classes; -1 behind the last one
        weight  float32 [b]      1; 0 for a bad image that is skipped, and for padding
        index   int64   [b]      index of the example in the source; -1 for padding

    and, if the source is weighted:

        label_weights  float32  [b, K]  weights of these labels, in [0, 1]; 0 behind the last one

    and each further view, uint8 [b, h, w, 3], and each map of the image, uint16 [b, H, W], 0 where
    it says nothing, by its name.

    A slot of weight 0 has a black image and no labels. `num_bad` counts the skipped images so far.
    UserError for a corrupt record, and for a bad image if that is not to be skipped.

    Close it, or leave its `with` block: a process must not end while tf.data still calls Python.
    At the latest that happens when it is collected or the interpreter exits.
    """

    def __init__(
        self,
        reader: Reader,
        views: Views,
        *,
        first_slot: int = 0,
        batch_size: int,
        on_bad_image: str,
        threads: int,
        stop: int = _ENDLESS,
        num_batches: int | None = None,
    ) -> None:
        """Batches of the slots [first_slot, stop), with padding up to `num_batches`, if given."""
        self.num_bad = 0
        self._reader, self._decoder = reader, _Decoder(reader, views)
        self._first_slot, self._stop, self._batch_size = first_slot, stop, batch_size
        self._num_batches = num_batches
        self._on_bad_image, self._is_skipping = on_bad_image, False
        self._threads = threads or machine.cores()
        self._made = 0
        # TensorFlow stops the threads of a dataset with the last reference to it: those in here.
        self._open: dict[str, Any] = {}
        weakref.finalize(self, self._open.clear)
        self._start(first_slot)
        self._empty = {
            name: np.zeros((0, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
            for name, spec in self._open["dataset"].element_spec.items()
        }

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
            self._recover(error)
            return next(self)
        self._made += 1
        self.num_bad += int(np.sum(batch["weight"] == 0))
        missing = self._batch_size - len(batch["index"])
        if missing == 0:
            return batch
        fill = {"labels": NO_LABEL, "index": NO_EXAMPLE}
        padding = {
            name: np.full((missing, *array.shape[1:]), fill.get(name, 0), array.dtype)
            for name, array in batch.items()
        }
        return {name: np.concatenate([batch[name], padding[name]]) for name in batch}

    def _start(self, first: int) -> None:
        elements = _elements(self._reader, first, self._stop, self._threads)
        slots = _slots(self._decoder, elements, self._is_skipping, self._threads)
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False  # nothing to tune: all stages share these threads
        options.threading.private_threadpool_size = self._threads
        options.threading.max_intra_op_parallelism = 1
        dataset = slots.batch(self._batch_size).prefetch(_PREFETCH_BATCHES).with_options(options)
        self._open.update(dataset=dataset, iterator=dataset.as_numpy_iterator())

    def _recover(self, error: Exception) -> None:
        """Goes on with the batch that tf.data failed to make, without its bad images, or raises."""
        first = self._first_slot + self._made * self._batch_size
        stop = min(first + self._batch_size, self._stop)
        self._reader.raise_failure(first, stop, error)
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise error  # the fault of no image
        if self._on_bad_image == "fail" or self._is_skipping:
            raise self._decoder.first_bad_image(first, stop) or error from error
        self._is_skipping = True
        self._start(first)

    def bad_image(self, index: int) -> str:
        """The location and the fault of a skipped image."""
        return f"{self._reader.source.describe(index)}: {self._reader.faults[index]}"

    def close(self) -> None:
        """Stops the threads and frees the buffers; the iteration is over. May be called again."""
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
