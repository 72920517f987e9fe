import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax.data import label_index
from vit_jax.data.source import Example
from vit_jax.data.sources import table as sources

DOCUMENTED_DIGITS = Path(__file__).parents[3] / "docs/digits"


def create(name: str, split: str = "train", **changed: Any) -> sources.Source:
    arguments = {"data_dir": None, "num_examples": None, "num_classes": None} | changed
    return sources.create(name, sources.Request(split=split, image_size=(24, 40), **arguments))


def test_unknown_source() -> None:
    with refused("input.source", "'digts'"):
        create("digts")


def test_declared_counts_are_checked() -> None:
    assert create("digits", num_examples=1437, num_classes=10).num_examples == 1437
    with refused("input.num_examples=1438"):
        create("digits", num_examples=1438)
    with refused("input.num_classes=9"):
        create("digits", num_classes=9)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("digts", {}, "evals.test.source='digts'"),
        ("digits", {"split": "tst"}, "evals.test.split='tst'"),
        ("digits", {"split": "test[9:2]"}, "evals.test.split='test[9:2]'"),
        ("tfds", {}, "evals.test.data_dir"),
        ("tfds", {"data_dir": "/nowhere"}, "evals.test.data_dir=/nowhere"),
        ("tfds", {"data_dir": str(Path(__file__).parent)}, "evals.test.data_dir"),
        ("image_folder", {}, "evals.test.data_dir"),
        ("image_folder", {"data_dir": "/nowhere"}, "evals.test.data_dir=/nowhere"),
        ("digits", {"num_classes": 9}, "evals.test.source"),
    ],
)
def test_messages_of_an_evaluation_name_its_section(
    name: str, arguments: dict[str, Any], named: str
) -> None:
    with refused(named) as error:
        create(name, where="evals.test", **arguments)
    assert "input." not in str(error.value)


def test_digits_splits_do_not_overlap() -> None:
    train, test = create("digits"), create("digits", "test")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    assert len({train.fingerprint, test.fingerprint}) == 2
    labels = [e.labels[0] for e in test.read(np.arange(360))]
    assert min(np.bincount(labels, minlength=10)) >= 28
    assert train.describe(1436) == "digits.npz, digit 1436"
    assert test.describe(0) == "digits.npz, digit 1437"


def test_slices_of_splits_are_read_one_behind_the_other() -> None:
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


def test_digits_are_gray_pngs_of_8_by_8() -> None:
    example = create("digits", "test[:1]").read(np.array([0]))[0]
    image = Image.open(io.BytesIO(example.image))
    assert (image.format, image.mode, image.size) == ("PNG", "L", (8, 8))
    assert np.asarray(image).max() == 255


def test_documented_digits_are_held_out_ones() -> None:
    test = create("digits", "test")
    files = sorted(DOCUMENTED_DIGITS.glob("*.png"))
    assert files
    for file in files:
        label, index = map(int, file.stem.split("_"))
        assert test.read(np.array([index]))[0] == Example(file.read_bytes(), (label,))


def test_synthetic_has_the_declared_sizes() -> None:
    source = create("synthetic", num_examples=303_000_000, num_classes=18_291)
    assert (source.num_examples, source.num_classes) == (303_000_000, 18_291)
    example = source.read(np.array([302_999_999]))[0]
    assert Image.open(io.BytesIO(example.image)).size == (40, 24)
    assert example.labels == (302_999_999 % 18_291,)
    with refused("input.num_examples", "input.num_classes"):
        create("synthetic", num_classes=10)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_a_folder_that_is_not_read_is_refused(name: str) -> None:
    with refused(name):
        create(name, data_dir="/mine", num_examples=16, num_classes=10)


def test_a_billion_classes_are_refused() -> None:
    with refused():
        create("synthetic", num_examples=16, num_classes=10**9)
