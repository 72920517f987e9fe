import random

import pytest
import tensorflow_datasets as tfds

from tests.messages import refused
from vit_jax.core.errors import UserError
from vit_jax.data.sources.split_names import splits_in_paths
from vit_jax.data.sources.splits import Slice, check_disjoint, overlap, parts, resolve

SIZES = {"train": 50_000, "test": 10_000, "tiny": 7}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", ("train", 0, 50_000)),
        ("train[:98%]", ("train", 0, 49_000)),
        ("train[98%:]", ("train", 49_000, 50_000)),
        ("train[100:]", ("train", 100, 50_000)),
        ("train[100:300]", ("train", 100, 300)),
        ("train[-10%:]", ("train", 45_000, 50_000)),
        ("train[:-100]", ("train", 0, 49_900)),
        ("tiny[:50%]", ("tiny", 0, 4)),
        ("tiny[50%:]", ("tiny", 4, 7)),
    ],
)
def test_slices(split, expected):
    assert resolve(split, SIZES, where="input") == Slice(*expected)


def tfds_splits(shard_lengths):
    """`train` in files of so many examples; there are no files."""
    template = tfds.core.ShardedFileTemplate(
        data_dir="/nowhere", dataset_name="x", split="train", filetype_suffix="tfrecord"
    )
    info = tfds.core.SplitInfo(
        name="train", shard_lengths=shard_lengths, num_bytes=0, filename_template=template
    )
    return tfds.core.SplitDict([info])


def bounds_in_tfds(splits, text):
    """The examples [start, stop) of a slice; None where TFDS refuses it, or reads nothing."""
    try:
        (part,) = tfds.core.ReadInstruction.from_spec(text).to_absolute(splits)
    except ValueError:
        return None
    stop = splits["train"].num_examples if part.to is None else part.to
    return (part.from_ or 0, stop) if 0 <= (part.from_ or 0) < stop else None


def random_slice(rng, num_examples):
    def boundary():
        unit = rng.choice(["", "%", "%", "shard"])
        most = {"": num_examples + 2, "%": 101, "shard": 5}[unit]
        number = rng.randint(-most, most)
        of_half = unit == "%" and rng.random() < 0.3
        return rng.choice(["", f"{number}{'.5' if of_half else ''}{unit}"])

    first, second = boundary(), boundary()
    if rng.random() < 0.5 and second:  # the same unit
        second = second.rstrip("%shard").partition(".")[0] + first.lstrip("-.0123456789")
    return rng.choice(["train", "train[-2shard]", *[f"train[{first}:{second}]"] * 20])


def test_random_slices_mean_what_tfds_means():
    """Or they are refused: those that TFDS refuses, or reads otherwise than they look."""
    rng, refused = random.Random(0), 0
    for _ in range(400):
        lengths = [rng.randint(1, 9) for _ in range(4)] if rng.random() < 0.5 else [300, 299, 1, 41]
        size, splits = sum(lengths), tfds_splits(lengths)
        text = random_slice(rng, size)
        expected = bounds_in_tfds(splits, text)
        try:
            part = resolve(text, {"train": size}, where="input", shard_lengths={"train": lengths})
        except UserError as error:
            refused += 1
            why = ("two units", "-0 from the end", "means shards")
            assert expected is None or any(each in str(error) for each in why), text
        else:
            assert (part.start, part.stop) == expected, text
    assert refused < 300


@pytest.mark.parametrize(
    "split",
    [
        "trian",
        "train[:50001]",
        "train[1/2:]",
        "train[:]",
        "train[60:66%]",  # TFDS: 60% to 66%
        "train[5%:2shard]",
        "train[:-0]",  # TFDS: nothing
        "train[1shard:]",
        "",
    ],
)
def test_wrong_splits(split):
    with refused(f"evals.test.split={split!r}"):
        resolve(split, SIZES, where="evals.test")


def test_a_part_of_the_only_split_can_be_held_out():
    with refused("input.split='train[:90%]' and evals.val.split='train[90%:]'"):
        resolve("val", {"train": 24}, where="evals.val")


def test_several_slices():
    assert parts("train[:800]+test[5:] + tiny") == ["train[:800]", "test[5:]", "tiny"]
    apart = [Slice("train", 45_000, 45_200), Slice("train", 0, 800), Slice("test", 0, 800), None]
    check_disjoint(apart, "train[...]", where="input")
    with refused("evals.x.split", "'train'"):
        check_disjoint([*apart, Slice("train", 799, 900)], "a+b", where="evals.x")
    with refused("evals.x.split", "'train'"):
        check_disjoint([Slice("all", 0, 900), Slice("train", 0, 9)], "all+train", where="evals.x")


# By datasets.data_files.get_data_patterns and resolve_pattern of datasets 5.2.0, which puts all
# into `train` where no path says a split; 1,500 random layouts agreed, too.
@pytest.mark.parametrize(
    "splits",
    [
        {"train-00000-of-00001.parquet": "train", "test-00000-of-00001.parquet": "test"},
        {"imgs-train-0000.tar": "train", "imgs-validation-0000.tar": "validation"},
        {"a_dev.1.csv": "validation", "x train 2.csv": "train", "testing0.csv": "test"},
        {"data/extra_1-00000-of-00002.parquet": "extra_1", "data/a.b-00000-of-00001.tar": "a.b"},
        {"data/train-00000-of-00001.parquet": "train", "data/test.parquet": ""},
        {"data/train/a-00000-of-00001.tar": "train", "data/val/train.tar": "validation"},
        {"more/data/extra-00000-of-00001.tar": "", "more/data/test.tar": "test"},
        {"train/0.tar": "train", "test.tar": ""},
        {"train-test.tar": "train test", "val.tar": "validation"},
        {"val/train/0.tar": "train validation"},
    ],
    ids=lambda splits: next(iter(splits)),
)
def test_splits_in_paths(splits):
    assert splits_in_paths(list(splits)) == [said.split() for said in splits.values()]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (Slice("train", 9, 20), True),
        (Slice("train", 10, 20), False),
        (Slice("val", 0, 20), False),
        (Slice("all", 90, 99), True),
    ],
)
def test_slices_that_share_examples(other, shared):
    slices = [Slice("test", 0, 5), Slice("train", 0, 10)]
    assert overlap(slices, [other]) == overlap([other], slices) == shared


def test_paths_that_say_no_split():
    """`datasets` takes all for `train`; case is ours, and `Train.csv` there one of no split."""
    assert splits_in_paths(["a.tar", "values.tar", "0/data/x-00000-of-00001.tar"]) == [[], [], []]
    assert splits_in_paths(["caf\udce9.tar"]) == [[]]  # bytes that are not text
    assert splits_in_paths(["Train.csv", "VAL.csv"]) == [["train"], ["validation"]]
