import itertools

import numpy as np

from tests.data.conftest import ListSource, encode, photo_like
from vit_jax.config import InputConfig
from vit_jax.data import pipeline, streams
from vit_jax.data.ops import table as ops
from vit_jax.data.source import Example
from vit_jax.learning import losses
from vit_jax.learning.cached_set import CachedSet
from vit_jax.learning.feed import local_rows
from vit_jax.parallel import mesh as meshes
from vit_jax.run.parts.device_cache import DeviceCache
from vit_jax.run.parts.examples import SplitOfRun

EXAMPLES = 37  # divides over nothing
READ = {"max_image_pixels": 10**6, "threads": 1}
PREPROCESS = "decode|pad_crop(8, 2)|flip_lr"


class WeightedSource(ListSource):
    """Images of 8 x 8; number 5 is a bad one."""

    weighted = True

    def __init__(self):
        images = [encode(photo_like(8, 8, seed=i)) for i in range(EXAMPLES)]
        images[5] = images[5][:-20]
        labels = [(i % 10,) if i % 3 else (1, 2) for i in range(EXAMPLES)]
        weights = [(0.5,) if i % 3 else (1.0, 0.25) for i in range(EXAMPLES)]
        three = zip(images, labels, weights, strict=True)
        super().__init__([Example(image, labels, weights=w) for image, labels, w in three])


def batches(*, batch_size, is_divided, mesh):
    """The batches of two epochs from step 1 on, and of an evaluation: (from devices, the host's)"""
    source, skip = WeightedSource(), {"on_bad_image": "skip"}
    preprocess = ops.parse(PREPROCESS)
    cache = DeviceCache(InputConfig(**READ, **skip), SplitOfRun("input", source, PREPROCESS))
    stored = cache.decode(lambda done, total: None)
    layout = losses.batch_layout(
        mesh, batch_size=batch_size, image_size=(8, 8), max_labels=2, weighted=True
    )
    cached = CachedSet(stored, preprocess.on_device(), layout, is_divided=is_divided)
    rows = local_rows(layout["weight"])
    order = {"batch_size": batch_size, "rows": rows}
    training = {**order, "seed": 3, "start_step": 1, "stream": streams.shuffled(EXAMPLES, seed=3)}
    number = 2 * EXAMPLES // batch_size
    choose = streams.train_slots(training["stream"], rows, batch_size, 3)
    on_host = pipeline.train_batches(source, PREPROCESS, **training, **READ, **skip)
    with cached.feed(choose, itertools.count(1), timeout_secs=60) as feed, on_host:
        yield from itertools.islice(zip(feed, on_host, strict=True), number)
        assert feed.skipped_images == on_host.num_bad > 0
        assert [on_host.bad_image(5)] == feed.bad_images.untold()
    on_host = pipeline.eval_batches(source, PREPROCESS, **order, **READ, **skip)
    choose, last = streams.eval_slots(rows, batch_size), -(-EXAMPLES // batch_size)
    with cached.feed(choose, range(last), timeout_secs=60) as feed, on_host:
        yield from zip(feed, on_host, strict=True)


def compare(**how):
    """Raises unless the batches are equal; returns their number."""
    number = 0
    for ours, theirs in batches(**how):
        assert ours.keys() == theirs.keys() - {"index"}
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        number += 1
    return number


def test_batches_are_those_of_the_host():
    mesh = meshes.make_mesh(replica=1, data=-1, fsdp=1, tensor=1)
    assert compare(batch_size=16, is_divided=False, mesh=mesh) == 4 + 3


ON_EIGHT = """
from tests.learning.cached_set_test import compare
from vit_jax.parallel import mesh as meshes
for name, sizes in {"whole": (1, 2, 1, 4), "divided": (2, 2, 2, 1)}.items():
    mesh = meshes.make_mesh(**dict(zip(("replica", "data", "fsdp", "tensor"), sizes)))
    assert compare(batch_size=16, is_divided=name == "divided", mesh=mesh) == 7
"""


def test_on_eight_devices_too(run_python):
    ended = run_python("-c", ON_EIGHT, devices=8)
    assert ended.returncode == 0, ended.stderr
