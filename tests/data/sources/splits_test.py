import random

import pytest
import tensorflow_datasets as tfds

from tests.messages import refused
from vit_jax.core.errors import UserError
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
def test_slices(split: str, expected: tuple[str, int, int]) -> None:
    assert resolve(split, SIZES, where="input") == Slice(*expected)


def tfds_splits(shard_lengths: list[int]) -> tfds.core.SplitDict:
    """`train` in files of so many examples; there are no files."""
    template = tfds.core.ShardedFileTemplate(
        data_dir="/nowhere", dataset_name="x", split="train", filetype_suffix="tfrecord"
    )
    info = tfds.core.SplitInfo(
        name="train", shard_lengths=shard_lengths, num_bytes=0, filename_template=template
    )
    return tfds.core.SplitDict([info])


def bounds_in_tfds(splits: tfds.core.SplitDict, text: str) -> tuple[int, int] | None:
    """The examples [start, stop) of a slice; None where TFDS refuses it, or reads nothing."""
    try:
        (part,) = tfds.core.ReadInstruction.from_spec(text).to_absolute(splits)
    except ValueError:
        return None
    stop = splits["train"].num_examples if part.to is None else part.to
    return (part.from_ or 0, stop) if 0 <= (part.from_ or 0) < stop else None


def random_slice(rng: random.Random, num_examples: int) -> str:
    def boundary() -> str:
        unit = rng.choice(["", "%", "%", "shard"])
        most = {"": num_examples + 2, "%": 101, "shard": 5}[unit]
        number = rng.randint(-most, most)
        of_half = unit == "%" and rng.random() < 0.3
        return rng.choice(["", f"{number}{'.5' if of_half else ''}{unit}"])

    first, second = boundary(), boundary()
    if rng.random() < 0.5 and second:  # the same unit
        second = second.rstrip("%shard").partition(".")[0] + first.lstrip("-.0123456789")
    return rng.choice(["train", "train[-2shard]", *[f"train[{first}:{second}]"] * 20])


def test_random_slices_mean_what_tfds_means() -> None:
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
            why = ("different units", "-0 from the end", "means shards")
            assert expected is None or any(each in str(error) for each in why), text
        else:
            assert (part.start, part.stop) == expected, text
    assert refused < 300


@pytest.mark.parametrize(
    "split",
    [
        "trian",
        "train[5:5]",
        "train[:50001]",
        "train[-50001:]",
        "train[1/2:]",
        "train[5]",
        "train[:]",
        "train[12.5:]",
        "train[60:66%]",  # TFDS: 60% to 66%
        "train[5%:2shard]",
        "train[:-0]",  # TFDS: nothing
        "tiny[-1%:]",  # TFDS: everything
        "train[1shard:]",
        "",
    ],
)
def test_wrong_splits(split: str) -> None:
    with refused(f"evals.test.split={split!r}"):
        resolve(split, SIZES, where="evals.test")


def test_a_part_of_the_only_split_can_be_held_out() -> None:
    with refused("input.split='train[:90%]' and evals.val.split='train[90%:]'"):
        resolve("val", {"train": 24}, where="evals.val")


def test_several_slices() -> None:
    assert parts("train[:800]+test[5:] + tiny") == ["train[:800]", "test[5:]", "tiny"]
    apart = [Slice("train", 45_000, 45_200), Slice("train", 0, 800), Slice("test", 0, 800), None]
    check_disjoint(apart, "train[...]", where="input")
    with refused("evals.x.split", "'train'"):
        check_disjoint([*apart, Slice("train", 799, 900)], "a+b", where="evals.x")
    with refused("evals.x.split", "'train'"):
        check_disjoint([Slice("all", 0, 900), Slice("train", 0, 9)], "all+train", where="evals.x")


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (Slice("train", 9, 20), True),
        (Slice("train", 10, 20), False),
        (Slice("val", 0, 20), False),
        (Slice("all", 90, 99), True),
    ],
)
def test_slices_that_share_examples(other: Slice, shared: bool) -> None:
    slices = [Slice("test", 0, 5), Slice("train", 0, 10)]
    assert overlap(slices, [other]) == overlap([other], slices) == shared
