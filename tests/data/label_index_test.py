import numpy as np
import pytest

from tests.messages import refused
from vit_jax.data import label_index
from vit_jax.data.source import Example, select_examples, single

LISTS = [(3,), (), (1, 2), (2,), (9, 1)]


pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def five(list_source):
    return list_source([Example(b"", labels) for labels in LISTS])


def lists(labels):
    return [
        tuple(labels.labels[first:stop].tolist())
        for first, stop in zip(labels.offsets[:-1], labels.offsets[1:], strict=True)
    ]


def test_parts_of_labels():
    labels = label_index.collect(LISTS)
    assert lists(labels) == LISTS
    assert labels.offsets.dtype == np.int64 and labels.labels.dtype == np.int32
    assert labels.examples().tolist() == [0, 2, 2, 3, 4, 4]
    assert lists(labels.slice(1, 4)) == LISTS[1:4]
    order = np.array([4, 1, 2, 2])
    assert lists(labels.take(order)) == [LISTS[i] for i in order]
    assert lists(single([4, 5])) == [(4,), (5,)]


def test_examples_by_class():
    labels = label_index.collect([*LISTS, (2, 2)])
    classes = label_index.by_class(labels, 10, describe=str)
    of = np.split(classes.examples, classes.offsets[1:-1])
    assert [x.tolist() for x in of] == [[], [2, 4], [2, 3, 5], [0], [], [], [], [], [], [4]]


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_that_is_not_a_class_is_refused(label):
    labels = label_index.collect([(3,), (1, label)])
    with refused(label):
        label_index.by_class(labels, 10, describe=lambda i: f"example {i}")


def test_a_file_keeps_them(tmp_path):
    path = tmp_path / label_index.file_name("train")
    assert path.name == "labels-train.npz"
    label_index.write(path, label_index.collect(LISTS))
    assert lists(label_index.read(path)) == LISTS
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(b"PK" + path.read_bytes()[2:60]),
        lambda path: np.savez(path, offsets=np.array([0, 9]), labels=np.array([1])),
        lambda path: np.savez(path, offsets=np.array([0, 2, 1]), labels=np.array([1])),
        lambda path: np.savez(path, something=np.array([0, 2, 1])),
    ],
)
def test_damaged_files(tmp_path, damage):
    path = tmp_path / "labels-train.npz"
    label_index.write(path, label_index.collect(LISTS))
    damage(path)
    with refused("train.npz"):
        label_index.read(path)


def test_other_sources_are_read_once(five, cache_folder, monkeypatch):
    monkeypatch.setattr(label_index, "_BLOCK", 2)
    seen = []
    progress = lambda done, total: seen.append((done, total))
    assert lists(label_index.find(five, progress)) == LISTS
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert lists(label_index.find(five, progress)) == LISTS
    assert len(seen) == 3
    (cache,) = (cache_folder / "vit_jax" / "labels").iterdir()
    cache.write_bytes(b"junk")
    assert lists(label_index.find(five, progress)) == LISTS
    assert len(seen) == 6


def test_records_that_were_written_anew_are_read_anew(five, list_source, monkeypatch):
    label_index.find(five)
    corrected = list_source([Example(b"", labels) for labels in LISTS[::-1]])
    monkeypatch.setattr(corrected, "fingerprint", five.fingerprint)
    monkeypatch.setattr(corrected, "stamp", lambda: "later")
    assert lists(label_index.find(corrected)) == LISTS[::-1]


def test_a_subset_takes_the_labels_of_the_whole(five):
    assert lists(label_index.find(select_examples(five, np.array([4, 0])))) == [LISTS[4], LISTS[0]]
