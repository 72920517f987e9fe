"""Files of pseudo-labels, the sources that have them, and images that are opened without labels."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.data.sources import tfds_test
from tests.data.sources.image_folder_test import fill
from tests.messages import refused
from vit_jax.data.source import Example, Unlabelled
from vit_jax.data.sources import pseudo_labels
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.pseudo_labels import About, PseudoLabels

ROUNDING = 1e-6
ABOUT = About("", 6, 10, tuple("abcdefghij"), {"data": "letters, train"})
LABELS = PseudoLabels(
    examples=np.array([1, 4, 5]),
    copies=np.array([2, 1, 3], np.int32),
    classes=np.array([[7, 2], [0, 9], [3, 7]], np.int32),
    probabilities=np.array([[0.6, 0.2], [0.9, 0.0], [0.3, 0.3]], np.float32),
    about=ABOUT,
)


@pytest.fixture
def unlabelled(list_source):
    """Six images, whose labels are not read."""
    examples = [Example(b"%d" % i, (i,), weights=(0.5,)) for i in range(6)]
    return Unlabelled(list_source(examples))


def written(path, source, labels=LABELS, **about):
    about = dataclasses.replace(labels.about, fingerprint=source.fingerprint, **about)
    pseudo_labels.write(path, labels._replace(about=about))
    return str(path)


def opened(source, path, *, num_classes=None, label_weights=True, where="input"):
    return pseudo_labels.open_pseudo_labelled(
        source, path, num_classes=num_classes, label_weights=label_weights, where=where
    )


def test_labels_are_dropped(unlabelled):
    assert [e.labels + e.weights for e in unlabelled.read(np.arange(6))] == [()] * 6
    assert (unlabelled.num_classes, unlabelled.class_names, unlabelled.weighted) == (0, None, False)
    assert unlabelled.fingerprint != unlabelled.source.fingerprint


def test_chosen_images_have_the_labels_of_the_file(unlabelled, tmp_path):
    source = opened(unlabelled, written(tmp_path / "a.npz", unlabelled))
    examples = source.read(np.arange(6))
    assert [example.image for example in examples] == [b"1", b"1", b"4", b"5", b"5", b"5"]
    assert [e.labels for e in examples] == [(7, 2)] * 2 + [(0, 9)] + [(3, 7)] * 3
    weights = [[0.75, 0.25]] * 2 + [[1.0, 0.0]] + [[0.5, 0.5]] * 3  # they sum to 1
    np.testing.assert_allclose([e.weights for e in examples], weights, atol=ROUNDING)
    assert (source.num_examples, source.max_labels, source.weighted) == (6, 2, True)
    assert (source.num_classes, source.class_names) == (10, ABOUT.class_names)
    assert source.describe(2) == "example 4"
    order = np.array([5, 0, 3, 0])
    assert [e.image for e in source.read(order)] == [b"5", b"1", b"5", b"1"]


def test_other_labels_are_other_data(unlabelled, tmp_path):
    changed = {
        "copies": np.array([2, 2, 2], np.int32),
        "classes": LABELS.classes[:, ::-1],
        "probabilities": LABELS.probabilities * np.float32(0.5),
        "examples": np.array([0, 4, 5]),
    }
    several = [LABELS, *(LABELS._replace(**{name: array}) for name, array in changed.items())]
    several[2] = several[2]._replace(probabilities=np.array([[0.6, 0.2]] * 3, np.float32))
    paths = [written(tmp_path / f"{i}.npz", unlabelled, each) for i, each in enumerate(several)]
    prints = [opened(unlabelled, path).fingerprint for path in paths]
    assert len({*prints, unlabelled.fingerprint}) == 6
    again = written(tmp_path / "again.npz", unlabelled, written_by={"data": "moved"})
    assert opened(unlabelled, again).fingerprint == prints[0]


def test_a_file_for_other_data_is_refused(unlabelled, list_source, tmp_path):
    path = written(tmp_path / "a.npz", unlabelled)
    other = Unlabelled(list_source([Example(b"", (0,))]))
    other.fingerprint = "other"
    with refused("input.mixture.b.pseudo_labels", path, "letters, train"):
        opened(other, path, where="input.mixture.b")


def test_declared_classes_and_weights_that_do_not_fit_are_refused(unlabelled, tmp_path):
    path = written(tmp_path / "a.npz", unlabelled)
    with refused("input.num_classes=5", "input.pseudo_labels"):
        opened(unlabelled, path, num_classes=5)
    with refused("input.label_weights", "--top_k"):
        opened(unlabelled, path, label_weights=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"examples": np.array([1, 1, 5])},
        {"examples": np.array([1, 4, 6])},
        {"copies": np.array([1, 0, 1], np.int32)},
        {"classes": np.array([[7, 2], [0, 10], [3, 7]], np.int32)},
        {"classes": LABELS.classes[:, :1]},
        {"probabilities": np.array([[np.nan, 0]] * 3, np.float32)},
        {"probabilities": np.array([[0, 0.5]] * 3, np.float32)},
        {"about": dataclasses.replace(ABOUT, num_classes=11)},
    ],
)
def test_numbers_that_cannot_be_are_refused(unlabelled, tmp_path, changed):
    path = written(tmp_path / "a.npz", unlabelled, LABELS._replace(**changed))
    with refused("input.pseudo_labels"):
        opened(unlabelled, path)


def test_a_damaged_or_missing_file_is_refused(unlabelled, tmp_path):
    file = tmp_path / "a.npz"
    with refused("input.pseudo_labels"):
        opened(unlabelled, str(file))
    content = Path(written(file, unlabelled)).read_bytes()
    assert pseudo_labels.is_pseudo_labels(file)
    flipped = bytearray(content)
    flipped[content.index(LABELS.classes.tobytes())] ^= 1
    for other in (b"", b"labels", content[:-40], content[: len(content) // 2], bytes(flipped)):
        file.write_bytes(other)
        with refused("input.pseudo_labels"):
            opened(unlabelled, str(file))
    np.savez(file, labels=np.arange(3))
    assert not pseudo_labels.is_pseudo_labels(file)
    with refused("input.pseudo_labels"):
        opened(unlabelled, str(file))
    np.save(tmp_path / "b.npy", np.arange(3))
    with refused("input.pseudo_labels"):
        opened(unlabelled, str(tmp_path / "b.npy"))


def without_labels(kind, folder, split):
    return sources.create(
        kind, sources.Request(data_dir=str(folder), split=split, num_classes=7, labelled=False)
    )


@pytest.mark.parametrize("split", ["unlabelled", "unlabelled[:50%]"])
def test_images_of_a_folder_need_no_classes(tmp_path, split):
    fill(tmp_path / "train" / "cat", ["1.png"])
    fill(tmp_path / "unlabelled", [f"{i}.png" for i in range(4)])
    fill(tmp_path / "unlabelled" / "more", ["5.png", "6.png"])
    source = without_labels("image_folder", tmp_path, split)
    assert source.num_examples == (3 if "[" in split else 6)
    assert all(example.labels == () for example in source.read(np.arange(source.num_examples)))
    assert "unlabelled" in source.describe(0)
    with refused("'more'"):
        sources.create("image_folder", sources.Request(data_dir=str(tmp_path), split=split))


def test_folders_of_classes_are_the_same_images_in_the_same_order(tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / name, [f"{i}.png" for i in range(20)])
    for split in ("train", "val", "all"):
        labelled = sources.create(
            "image_folder", sources.Request(data_dir=str(tmp_path), split=split)
        )
        source = without_labels("image_folder", tmp_path, split)
        every = np.arange(source.num_examples)
        assert [e.image for e in source.read(every)] == [e.image for e in labelled.read(every)]


def test_records_need_no_labels_and_those_there_are_not_read(tmp_path):
    folder = tfds_test.write(tmp_path / "1.0.0", key="kind")
    source = without_labels("tfds", folder, "train[2:]")
    assert [example.labels for example in source.read(np.arange(10))] == [()] * 10
    assert source.read(np.array([0]))[0].image == b"image 2\0"
    with refused("input.label"):
        sources.create("tfds", sources.Request(data_dir=str(folder), split="train"))
