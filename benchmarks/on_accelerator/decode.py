"""Decodes the small sets of a run for input.cache=device by Pillow, where there is no TensorFlow.

    python -m benchmarks.on_accelerator.decode --config FILE [--config.input.data_dir=DIR]

Writes what `vit_jax.train` would otherwise let TensorFlow decode, for configs whose images need no
resizing. JPEG decoders differ by a level or two; a PNG has one meaning.
"""

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from vit_jax import config as configs
from vit_jax.config import RunConfig
from vit_jax.core import command, errors
from vit_jax.data.pipeline import HostBatch
from vit_jax.data.source import NO_LABEL, Source
from vit_jax.learning.cached_set import Decoded
from vit_jax.run.parts import device_cache, eval_data, examples
from vit_jax.run.parts.examples import SplitOfRun

BATCH = 1000


def main(_: list[str]) -> None:
    """Decodes the training split and those of the evaluations, if they are not there."""
    flags = command.flags.FLAGS
    config = configs.load(flags.config, flags.config_override)
    for split in splits(config):
        cache = device_cache.DeviceCache(config.input, split)
        if not cache.file().exists():
            cache.write(decode(split, cache.image_size()))


def splits(config: RunConfig) -> list[SplitOfRun]:
    """The splits that a run reads."""
    source = examples.source(config.input)
    found = [SplitOfRun("input", source, config.input.preprocess)]
    for name, c in config.evals.items():
        source = eval_data.eval_source(f"evals.{name}", c, config.input, source.num_classes)
        found.append(SplitOfRun(f"evals.{name}", source, c.preprocess))
    return found


def decode(split: SplitOfRun, size: tuple[int, int]) -> Decoded:
    """What DeviceCache.decode gives; no image may be bad."""
    source = split.source
    return device_cache.collect(source, size, batches(source, size), source.describe)


def batches(source: Source, size: tuple[int, int]) -> Iterator[HostBatch]:
    """Every example once, in order, as pipeline.Batches has them."""
    for first in range(0, source.num_examples, BATCH):
        indices = np.arange(first, min(first + BATCH, source.num_examples))
        labels = np.full((len(indices), source.max_labels), NO_LABEL, np.int32)
        images = np.zeros((len(indices), *size, 3), np.uint8)
        for row, example in enumerate(source.read(indices)):
            index = int(indices[row])
            assert example.orientation == 1, source.describe(index)
            images[row] = pixels(example.image, size, source, index)
            labels[row, : len(example.labels)] = example.labels
        weight = np.ones(len(indices), np.float32)
        yield {"image": images, "labels": labels, "weight": weight, "index": indices}


def pixels(image: bytes, size: tuple[int, int], source: Source, index: int) -> np.ndarray:
    """uint8 [H, W, 3]. UserError for another size."""
    array = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
    if array.shape[:2] != size:
        raise errors.UserError(
            f"{source.describe(index)} has {array.shape[:2]} pixels, not {size}; this decodes "
            "images that need no resizing."
        )
    return array


if __name__ == "__main__":
    command.define_config(configs.fields)
    command.run(main)
