"""Splits with each class in proportion."""

import numpy as np
import pytest

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg
from tests.tools.prepare.duplicates_test import A, B, assigned, table, with_column
from tests.tools.prepare.pipeline_test import files, prepared
from vit_jax.core.errors import UserError
from vit_jax.tools.prepare import image_folder
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.split_assignment import Splits, named_splits, stratified


def counts_of(sizes, splits, seed=0):
    """Images per class and split, for classes of these sizes in random order."""
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    result = stratified(classes, Splits.parse(splits))
    together = np.concatenate(list(result.values()))
    assert sorted(together) == list(range(len(classes)))
    assert all((np.diff(places) > 0).all() for places in result.values())
    return {
        name: np.bincount(classes[places], minlength=len(sizes)).tolist()
        for name, places in result.items()
    }


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        ("cat/train_1.png cat/test_1.png dog/Train_2.png", "train test train"),
        ("a/training/1.png a/dev/2.png", "train validation"),
        ("train/cat/test_1.png val/cat/1.png", "train validation"),  # folders come first
        ("test.png b.png c.png", None),
        ("train/1.png train/2.png", None),
    ],
)
def test_names_may_say_the_splits(names, splits):
    names = names.split()
    images = with_column(table(*[("a", A)] * len(names)), "name", names)
    named, notes = named_splits(images)
    assert named["split"].to_pylist() == (splits.split() if splits else [None] * len(names))
    assert bool(notes) == bool(splits)
    assert named.schema == images.schema


def test_names_that_say_no_split_beside_those_that_do():
    images = with_column(table(*[("a", A)] * 3), "name", ["train_1.png", "test_1.png", "c.png"])
    with refused("--splits", "c.png"):
        named_splits(images)
    aside = with_column(images, "action", ["keep", "keep", "set_aside"])
    assert named_splits(aside)[0]["split"].to_pylist() == ["train", "test", None]


def test_each_class_is_in_proportion():
    counts = counts_of([100, 50, 10], "validation=32,test=16,train=rest")
    assert counts == {"validation": [20, 10, 2], "test": [10, 5, 1], "train": [70, 35, 7]}


@pytest.mark.parametrize("seed", range(5))
def test_proportions_are_as_close_as_whole_images_allow(seed):
    sizes = np.random.default_rng(seed).integers(3, 200, 50).tolist()
    counts = counts_of(sizes, "a=333,train=rest,b=777", seed)
    total, taken = sum(sizes), np.zeros(50)
    for name, number in (("a", 333), ("b", 777)):
        assert sum(counts[name]) == number
        taken += np.array(counts[name])
        wanted = np.array(sizes) * taken.sum() / total
        assert np.abs(taken - wanted).max() < 1
    assert min(counts["train"]) >= 1


def test_rare_classes_stay_in_the_rest():
    """A class of one image is in the rest; of two at most one is split off, at every split size."""
    for number in range(1, 32):
        counts = counts_of([1, 1, 2, 2, 30], f"validation={number},train=rest")
        assert sum(counts["validation"]) == number
        assert counts["validation"][:2] == [0, 0] and max(counts["validation"][2:4]) <= 1
        assert min(counts["train"]) >= 1
    with refused("validation=31"):
        counts_of([1, 1, 2, 2, 30], "validation=32,train=rest")


def test_many_rare_classes_and_a_large_one():
    """The large class makes up the difference at once: one step per image would take hours."""
    counts = counts_of([1] * 100_000 + [200_000, 100_000], "validation=150000,train=rest")
    assert counts["validation"][:-2] == [0] * 100_000
    assert counts["validation"][-2:] == [100_000, 50_000]


def test_the_first_of_a_class_are_split_off():
    """The first in the order of the set."""
    classes = np.array([0, 0, 1, 0, 1, 1, 0, 1])
    result = stratified(classes, Splits.parse("test=2,validation=2,train=rest"))
    assert {name: places.tolist() for name, places in result.items()} == {
        "test": [0, 2],
        "validation": [1, 4],
        "train": [3, 5, 6, 7],
    }


def test_a_folder_of_images(tmp_path):
    for name, size in {"common": 12, "rare": 2, "single": 1}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(size):
            (tmp_path / "photos" / name / f"{i}.jpg").write_bytes(jpeg(100 * size + i))
    collection = image_folder.collection(CollectionRequest(str(tmp_path / "photos")))
    options = PrepareOptions(splits="validation=5,train=rest", stratify=True)
    data_set = prepared(collection, tmp_path / "out", options)
    labels = {
        name: np.bincount(
            [data_set.table["labels"][int(row)].as_py()[0] for row in rows], minlength=3
        )
        for name, rows in data_set.assignment.splits.items()
    }
    assert labels["validation"].tolist() in ([4, 1, 0], [5, 0, 0]) and labels["train"].min() == 1
    plain = PrepareOptions(splits="validation=5,train=rest")
    other = prepared(collection, tmp_path / "plain", plain)
    assert files(other.folder) != files(data_set.folder)


@pytest.mark.parametrize("options", [{"splits": "a=1,b=rest"}, {"stratify": True}])
def test_splits_are_refused_where_the_collection_names_all(options):
    images = table(("a", A), ("b", B), splits=["train", "val"])
    with pytest.raises(UserError) as raised:
        assigned(images, **options)
    assert raised.value.field == f"--{next(iter(options))}"


def test_stratify_needs_splits_and_splits_may_add_to_those_of_the_collection():
    with refused("--stratify"):
        assigned(table(("a", A), ("b", B)), stratify=True)
    images = table(("a", A), ("b", B), splits=["train", None])
    result = assigned(images, splits="b=rest")
    assert {name: rows.tolist() for name, rows in result.splits.items()} == {"train": [0], "b": [1]}
