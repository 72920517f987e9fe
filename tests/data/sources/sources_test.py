from pathlib import Path

import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import label_index
from vit_jax.data.source import Example
from vit_jax.data.sources import table as sources

DOCUMENTED_DIGITS = Path(__file__).parents[3] / "docs/digits"


def create(name, split="train", **changed):
    arguments = {"data_dir": None, "num_examples": None, "num_classes": None} | changed
    return sources.create(name, sources.Request(split=split, image_size=(24, 40), **arguments))


def test_declared_counts_are_checked():
    assert create("digits", num_examples=1437, num_classes=10).num_examples == 1437
    with refused("input.num_examples=1438"):
        create("digits", num_examples=1438)
    with refused("input.num_classes=9"):
        create("digits", num_classes=9)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("digts", {}, "source='digts'"),
        ("digits", {"split": "tst"}, "split='tst'"),
        ("digits", {"split": "test[9:2]"}, "split='test[9:2]'"),
        ("digits", {"num_classes": 9}, ""),
        ("digits", {"data_dir": "/mine"}, "data_dir"),
        ("synthetic", {"data_dir": "/mine", "num_examples": 16, "num_classes": 10}, "data_dir"),
        ("tfds", {}, "data_dir"),
        ("tfds", {"data_dir": "/nowhere"}, "data_dir=/nowhere"),
        ("tfds", {"data_dir": str(Path(__file__).parent)}, "data_dir"),
        ("tfds", {"data_dir": ""}, "data_dir"),
        ("image_folder", {}, "data_dir"),
        ("image_folder", {"data_dir": "/nowhere"}, "data_dir=/nowhere"),
        ("image_folder", {"data_dir": ""}, "data_dir"),
        ("image_table", {"data_dir": ""}, "data_dir"),
    ],
)
@pytest.mark.parametrize("where", ["input", "evals.test"])
def test_messages_name_the_section(name, arguments, named, where):
    with refused(f"{where}.{named}") as error:
        create(name, where=where, **arguments)
    assert where == "input" or "input." not in str(error.value)


def test_digits_splits_do_not_overlap():
    train, test = create("digits"), create("digits", "test")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    assert len({train.fingerprint, test.fingerprint}) == 2
    labels = [e.labels[0] for e in test.read(np.arange(360))]
    assert min(np.bincount(labels, minlength=10)) >= 28
    assert train.describe(1436) == "digits.npz, digit 1436"
    assert test.describe(0) == "digits.npz, digit 1437"


def test_slices_of_splits_are_read_one_behind_the_other():
    joined = create("digits", "test[:3]+train[5:9]", num_examples=7)
    assert joined.name == "digits"
    indices = np.array([6, 0, 3])
    apart = [create("digits", "train"), create("digits", "test"), create("digits", "train")]
    expected = [s.read(np.array([i]))[0] for s, i in zip(apart, (8, 0, 5), strict=True)]
    assert joined.read(indices) == expected
    assert joined.describe(6) == "digits.npz, digit 8"
    labels = label_index.find(joined)
    assert labels.labels[indices].tolist() == [e.labels[0] for e in expected]
    assert joined.fingerprint != create("digits", "train[5:9]+test[:3]").fingerprint
    with refused("input.split", "'train'"):
        create("digits", "train[:50]+train[5:9]")
    assert create("synthetic", "a+b", num_examples=7, num_classes=2).num_examples == 7


def test_documented_digits_are_held_out_ones():
    test = create("digits", "test")
    files = sorted(DOCUMENTED_DIGITS.glob("*.png"))
    assert files
    for file in files:
        label, index = map(int, file.stem.split("_"))
        assert test.read(np.array([index]))[0] == Example(file.read_bytes(), (label,))
