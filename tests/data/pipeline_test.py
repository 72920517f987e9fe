import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import label_index, streams
from vit_jax.data.label_index import balanced
from vit_jax.data.mixtures import MixtureSource, mixed
from vit_jax.data.pipeline import eval_batches, train_batches
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.table import Synthetic
from vit_jax.data.streams import eval_counts, eval_slots, shuffled, train_slots

AUGMENT = "decode|pad_crop(8, 2)|flip_lr"
# One op of each kind of draw: AutoAugment's are like RandAugment's.
AUGMENT_STRONGLY = (
    "decode|resize(24)|inception_crop(16)|flip_lr|randaugment(1, 9)|three_augment"
    "|color_jitter(0.3, 0.3)|random_erasing(0.5)"
)
# A distant step may take this many times as long to start as the first.
LARGEST_START_RATIO = 1.5
# Over 12,000 steps: a tenth of a kilobyte each, less than any leaked object would take.
MOST_GROWTH_BYTES = 1_200_000


def train(source, preprocess=AUGMENT, **changed):
    arguments = {
        "batch_size": 16, "seed": 0, "start_step": 0, "on_bad_image": "fail",
        "max_image_pixels": 10**6, "threads": 2,
    }  # fmt: skip
    return train_batches(source, preprocess, **arguments | changed)


def evaluate(source, preprocess="decode|resize(4)", **changed):
    arguments = {"batch_size": 16, "on_bad_image": "fail", "max_image_pixels": 10**6, "threads": 2}
    return eval_batches(source, preprocess, **arguments | changed)


def take(batches, count):
    with batches:
        return list(itertools.islice(batches, count))


def rows_of(host, num_hosts, batch_size=16):
    """The slots of a batch that one of several hosts makes."""
    return np.split(np.arange(batch_size), num_hosts)[host]


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name in actual:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


# --- what is in a batch ---------------------------------------------------------------------------


def test_shapes_and_types(few):
    (batch,) = take(train(few(20), "decode|resize((6, 8))"), 1)
    assert {name: (x.shape, x.dtype.name) for name, x in batch.items()} == {
        "image": ((16, 6, 8, 3), "uint8"),
        "labels": ((16, 2), "int32"),
        "weight": ((16,), "float32"),
        "index": ((16,), "int64"),
    }
    np.testing.assert_array_equal(batch["labels"][:, 0], batch["index"] % 10)
    np.testing.assert_array_equal(batch["labels"][:, 1], -1)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["index"])
    np.testing.assert_array_equal(batch["weight"], 1)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(7, 3), (20, 16), (3, 10), (1, 4)])
def test_batches_straddle_epochs_and_nothing_is_dropped(few, num_examples, batch_size):
    num_epochs = 6
    count = -(-num_examples * num_epochs // batch_size)
    batches = take(train(few(num_examples), "decode|resize(4)", batch_size=batch_size), count)
    indices = np.concatenate([batch["index"] for batch in batches])
    epochs = indices[: num_examples * num_epochs].reshape(num_epochs, num_examples)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(num_examples), (6, 1)))
    _, expected = shuffled(num_examples, seed=0)(np.arange(len(indices)))
    np.testing.assert_array_equal(indices, expected)


def test_random_numbers_differ_between_epochs_and_seeds():
    one = sources.create(
        "digits", sources.Request(split="train[:1]", num_examples=1, num_classes=10)
    )
    first, second = (take(train(one, seed=seed, batch_size=64), 1)[0]["image"] for seed in (0, 1))
    # 64 epochs of one digit, which has 5 x 5 positions and is flipped or not.
    assert len({image.tobytes() for image in first}) > 25
    assert (first != second).any()


# --- determinism ----------------------------------------------------------------------------------


def test_hosts_together_make_the_batches_of_one(digits):
    """Byte for byte, across the end of an epoch."""
    expected = take(train(digits, start_step=88), 4)
    parts = [take(train(digits, rows=rows_of(host, 2), start_step=88), 4) for host in range(2)]
    for step, batch in enumerate(expected):
        assert_equal({k: np.concatenate([part[step][k] for part in parts]) for k in batch}, batch)


def test_resumed_equals_straight(digits):
    straight = take(train(digits), 8)
    for step in (1, 7):
        (resumed,) = take(train(digits, start_step=step), 1)
        assert_equal(resumed, straight[step])


def all_streams(digits):
    """Every way of choosing examples, and its source."""
    joined = MixtureSource({"all": digits, "few": streams.first_examples(digits, 37)})
    by_class = label_index.by_class(label_index.find(digits), 10, describe=digits.describe)
    return {
        "shuffled": (digits, shuffled(digits.num_examples, seed=0)),
        "repeated": (digits, shuffled(digits.num_examples, seed=0, repeats=3)),
        "mixed": (joined, mixed(joined.sizes, {"all": 2, "few": 1}, seed=0)),
        "balanced": (digits, balanced(by_class, seed=0)),
    }


# Steps 86 to 92 of 16 examples, across the end of an epoch: first step, number of steps, hosts.
RESTARTS = ((86, 2, 1), (88, 3, 4), (91, 1, 2))


@pytest.mark.parametrize("name", ["shuffled", "repeated", "mixed", "balanced"])
def test_restarts_with_other_numbers_of_hosts(digits, name):
    """Compares examples and seeds on all hosts, and bytes on one of each."""
    source, stream = all_streams(digits)[name]
    whole = train_slots(stream, np.arange(16), 16, 0)(np.arange(86 * 16, 92 * 16))
    for first, count, num_hosts in RESTARTS:
        per_host = 16 // num_hosts
        slots = np.arange(first * per_host, (first + count) * per_host)
        for host in range(num_hosts):
            rows = rows_of(host, num_hosts)
            places = ((np.arange(first, first + count) - 86)[:, None] * 16 + rows).ravel()
            for own, all_of_it in zip(train_slots(stream, rows, 16, 0)(slots), whole, strict=True):
                np.testing.assert_array_equal(own, all_of_it[places])
    straight = take(train(source, stream=stream, start_step=86), 6)
    for first, count, num_hosts in RESTARTS[1:]:
        rows = rows_of(num_hosts - 1, num_hosts)
        own = take(train(source, stream=stream, start_step=first, rows=rows), count)
        expected_batches = straight[first - 86 : first - 86 + count]
        for batch, expected in zip(own, expected_batches, strict=True):
            assert_equal(batch, {k: v[rows] for k, v in expected.items()})


@pytest.mark.parametrize("changed", [{"threads": 1}, {"threads": 5}, {"on_bad_image": "skip"}])
def test_threads_and_buffers_do_not_affect_the_batches(digits, changed):
    for actual, expected in zip(
        take(train(digits, **changed), 3), take(train(digits), 3), strict=True
    ):
        assert_equal(actual, expected)


def test_threads_and_hosts_do_not_affect_strong_augmentation(digits):
    expected = take(train(digits, AUGMENT_STRONGLY), 2)
    parts = [
        take(train(digits, AUGMENT_STRONGLY, rows=rows_of(host, 2), threads=threads), 2)
        for host, threads in enumerate((1, 5))
    ]
    for step, batch in enumerate(expected):
        assert_equal({k: np.concatenate([part[step][k] for part in parts]) for k in batch}, batch)
        assert len({image.tobytes() for image in batch["image"]}) == 16


@pytest.mark.parametrize("num_examples", [1437, 14_000_000])
def test_a_far_step_starts_as_fast_as_the_first(num_examples):
    source = Synthetic(num_examples, 10, (8, 8))

    def seconds(start_step):
        start = time.perf_counter()
        take(train(source, "decode|resize(8)", start_step=start_step), 1)
        return time.perf_counter() - start

    seconds(0)  # the first in a process is slower
    times = []
    while len(times) < 20:  # the machine may be busy
        times += [(seconds(0), seconds(1_000_000)) for _ in range(3)]
        first, far = np.min(times, axis=0)
        if far < LARGEST_START_RATIO * first:
            return
    raise AssertionError(times)


@pytest.mark.slow
def test_memory_is_flat_over_20_000_steps():
    """Resident memory by thousands of steps; the first ones fill buffers."""
    source = Synthetic(14_000_000, 10, (16, 16))
    sizes = []
    with train(source, "decode|resize(16)|flip_lr", batch_size=8) as batches:
        for step, _ in enumerate(itertools.islice(batches, 20_000), 1):
            if step % 1000 == 0:
                sizes.append(resident_bytes())
    first, last = np.mean(sizes[4:8]), np.mean(sizes[-4:])
    assert last - first < MOST_GROWTH_BYTES, sizes


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- evaluation -----------------------------------------------------------------------------------


HOSTS_AND_BATCHES = [(1, 1), (1, 4), (2, 8), (4, 8), (4, 16), (2, 64)]


@pytest.mark.parametrize(("num_hosts", "batch_size"), HOSTS_AND_BATCHES)
def test_slots_have_every_example_once(num_hosts, batch_size):
    for num_examples in range(1, 70):
        indices, batches = [], set()
        for host in range(num_hosts):
            rows = rows_of(host, num_hosts, batch_size)
            num_slots, num_batches = eval_counts(num_examples, rows, batch_size)
            own, seeds = eval_slots(rows, batch_size)(np.arange(num_slots))
            np.testing.assert_array_equal(own % batch_size, np.resize(rows, num_slots))
            assert (seeds[:, 0] == 0).all() and len(np.unique(seeds[:, 1])) == num_slots
            indices.append(own)
            batches.add(num_batches)
        np.testing.assert_array_equal(np.sort(np.concatenate(indices)), np.arange(num_examples))
        assert batches == {-(-num_examples // batch_size)}


@pytest.mark.parametrize(
    ("num_examples", "num_hosts", "batch_size"),
    [(1, 2, 4), (7, 1, 4), (8, 2, 8), (9, 2, 8), (17, 4, 8)],
)
def test_every_example_is_seen_once(few, num_examples, num_hosts, batch_size):
    source = few(num_examples)
    hosts = [
        list(evaluate(source, batch_size=batch_size, rows=rows_of(h, num_hosts, batch_size)))
        for h in range(num_hosts)
    ]
    assert {len(batches) for batches in hosts} == {-(-num_examples // batch_size)}
    batches = [batch for host in hosts for batch in host]
    assert {len(b["index"]) for b in batches} == {batch_size // num_hosts}
    index = np.concatenate([b["index"] for b in batches])
    weight = np.concatenate([b["weight"] for b in batches])
    np.testing.assert_array_equal(np.sort(index[weight == 1]), np.arange(num_examples))
    assert (index[weight == 0] == -1).all()
    for b in batches:
        assert (b["labels"][b["weight"] == 0] == -1).all()
        assert (b["image"][b["weight"] == 0] == 0).all()


def test_images_must_come_out_in_one_size(digits):
    with refused("input.preprocess"):
        train(digits, "decode|flip_lr")


def test_reads_real_photographs_as_one_source():
    photos = Path(__file__).parents[3] / "shared/data/photos"
    if not photos.exists():
        pytest.skip("needs the photographs")
    source = sources.create(
        "image_folder",
        sources.Request(data_dir=str(photos), split="val", num_examples=60, num_classes=6),
    )
    batches = list(evaluate(source, "decode|resize_small(64)|central_crop(64)"))
    assert sum(batch["weight"].sum() for batch in batches) == 60
    (batch,) = take(train(source, "decode|inception_crop(64)|flip_lr"), 1)
    assert batch["image"].std() > 10
