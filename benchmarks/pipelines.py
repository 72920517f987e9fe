"""Images per CPU-second: this project's input pipeline against a plain one of tf.data.

Both read the same folder of JPEG files repeatedly. The plain one is as quick as tf.data makes the
same ops: a table of all files, a shuffle buffer, stateful random numbers. It gives floats, with
mean and std applied on the host, as most training code does, or bytes, as this project does.
Interleaved folders, as in most training code, make it a quarter slower. They take turns in one
process; medians are compared, since single runs vary by a fifth.
"""

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks import rows
from vit_jax.data import pipeline
from vit_jax.data.host_tf import tf
from vit_jax.data.sources import table as sources

_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Image folder with a split `train`.", required=True
)
_REPETITIONS = flags.DEFINE_integer("repetitions", 9, "How often each pipeline has its turn.")
_BATCHES = flags.DEFINE_integer("batches", 12, "Batches of a turn that are measured.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images in a batch.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of either pipeline.")

SIZE_PX = 224
# The last operation of a plain pipeline, by the kind of pixels that it gives.
_PLAIN: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "floats": lambda image: (image / 255.0 - 0.5) / 0.5,
    "bytes": lambda image: tf.cast(image, tf.uint8),
}
_WARM_UP_BATCHES = 2
_SHUFFLE_BUFFER = 1000


def compare(name: str, preprocess: str, plain: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Measures, prints, and appends a row for each of _PLAIN to benchmarks/results/<name>.csv.

    `plain` does the same as the ops of `preprocess` in the usual way: from an encoded image, string
    [], to float32 [224, 224, 3] with values from 0 to 255.
    """
    source = images()
    medians = take_turns(
        {"vit_jax": lambda repetition: ours(source, preprocess, seed=repetition)}
        | {
            pixels: lambda _, finish=finish: contextlib.nullcontext(
                _plain(_DATA_DIR.value, lambda data: finish(plain(data)))
            )
            for pixels, finish in _PLAIN.items()
        }
    )
    for pixels in _PLAIN:
        row = {
            "plain": pixels,
            "vit_jax_images_per_cpu_second": round(medians["vit_jax"]),
            "plain_images_per_cpu_second": round(medians[pixels]),
            "ratio": round(medians["vit_jax"] / medians[pixels], 3),
        }
        record(name, row)


def images() -> sources.Source:
    """The folder given by --data_dir."""
    return sources.create(
        "image_folder",
        sources.Request(data_dir=_DATA_DIR.value, split="train", image_size=(SIZE_PX, SIZE_PX)),
    )


Contender = Callable[[int], AbstractContextManager[Iterator[object]]]


def take_turns(contenders: Mapping[str, Contender]) -> dict[str, float]:
    """Median images per CPU-second of each contender; `contender(repetition)` opens its batches."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(_REPETITIONS.value):
        for name, contender in contenders.items():
            with contender(repetition) as batches:
                rates[name].append(_images_per_cpu_second(batches))
        print(f"{repetition}: " + ", ".join(f"{k} {v[-1]:.0f}" for k, v in rates.items()))
    return {name: statistics.median(values) for name, values in rates.items()}


def record(name: str, row: dict[str, object]) -> None:
    """Prints a row, and appends it to benchmarks/results/<name>.csv."""
    kept = os.environ.get("MALLOC_MMAP_MAX_") == "0"  # as in a process that trains on its CPU
    images = {
        "heap": "kept" if kept else "default",
        "images": _BATCHES.value * _BATCH_SIZE.value * _REPETITIONS.value,
    }
    device = f"{rows.cpu()}, {_THREADS.value} threads"
    rows.record(name, "vit_jax/data", "tensorflow tensorflow-cpu", images | row, device=device)


def plain_crop_and_flip(data: tf.Tensor) -> tf.Tensor:
    """A random window, decoded alone, resized and mirrored at random: float32 [224, 224, 3]."""
    window = _window(data, tf.image.sample_distorted_bounding_box)
    image = tf.io.decode_and_crop_jpeg(data, window, channels=3)
    image = tf.image.resize(image, (SIZE_PX, SIZE_PX))
    return tf.image.random_flip_left_right(image)


def ours(source: sources.Source, preprocess: str, seed: int) -> pipeline.Batches:
    """Batches of this project's pipeline."""
    return pipeline.train_batches(
        source,
        preprocess,
        batch_size=_BATCH_SIZE.value,
        seed=seed,
        start_step=0,
        on_bad_image="fail",
        max_image_pixels=10**8,
        threads=_THREADS.value,
    )


def _plain(
    data_dir: str, augment: Callable[[tf.Tensor], tf.Tensor]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    folders = sorted(Path(data_dir, "train").iterdir())
    files = [(str(file), n) for n, folder in enumerate(folders) for file in folder.iterdir()]

    def image_and_label(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return augment(tf.io.read_file(file)), label

    names, labels = zip(*files, strict=True)
    dataset = (
        tf.data.Dataset.from_tensor_slices((list(names), list(labels)))
        .shuffle(_SHUFFLE_BUFFER)
        .repeat()
        .map(image_and_label, num_parallel_calls=_THREADS.value)
        .batch(_BATCH_SIZE.value)
        .prefetch(2)
    )
    return _with_threads(dataset, deterministic=False)


def decoding_alone(source: sources.Source, seed: int) -> Iterator[object]:
    """Decodes windows, drawn and read beforehand, and nothing else; a batch holds their sizes.

    This bounds the speed of any pipeline with this decoder.
    """
    order = np.random.default_rng(seed).permutation(source.num_examples)
    files = [example.image for example in source.read(order)]
    draw = tf.image.stateless_sample_distorted_bounding_box
    windows = [_window(file, draw, (seed, place)).numpy() for place, file in enumerate(files)]

    def size(file: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_and_crop_jpeg(file, window, channels=3, dct_method="INTEGER_ACCURATE")
        return tf.shape(pixels)

    dataset = tf.data.Dataset.from_tensor_slices((files, windows)).repeat()
    dataset = dataset.map(size, num_parallel_calls=_THREADS.value).batch(_BATCH_SIZE.value)
    return _with_threads(dataset)


def _with_threads(dataset: tf.data.Dataset, deterministic: bool = True) -> Iterator[Any]:
    options = tf.data.Options()
    options.deterministic = deterministic
    options.autotune.enabled = False  # nothing to tune, and it takes time
    options.threading.private_threadpool_size = _THREADS.value
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options).as_numpy_iterator()


def _window(data: tf.Tensor, draw: Callable[..., Any], *seed: tuple[int, int]) -> tf.Tensor:
    """A random window [top, left, height, width] of an encoded image."""
    begin, extent, _ = draw(
        tf.image.extract_jpeg_shape(data),
        tf.zeros([1, 0, 4]),
        *seed,
        min_object_covered=0.0,
        area_range=(0.05, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def _images_per_cpu_second(batches: Iterator[object]) -> float:
    def take(count: int) -> None:
        for _ in itertools.islice(batches, count):
            pass

    take(_WARM_UP_BATCHES)
    start = time.process_time()
    take(_BATCHES.value)
    return _BATCHES.value * _BATCH_SIZE.value / (time.process_time() - start)
