"""Images of evaluation sets are left out of training splits."""

import errno
import hashlib
import io
import os

import pyarrow as pa
import pytest
from PIL import Image
from tensorflow_datasets import features

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.tools.prepare import evaluation_sets, image_folder, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.pipeline import prepare
from vit_jax.tools.prepare.prepared_set import read_note


def folder_of(root, images):
    """Writes the images as <class>/*, in two classes."""
    for i, (name, data) in enumerate(images.items()):
        path = root / f"class{i % 2}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def prepared(source, output, *evaluated, version="1.0.0"):
    options = PrepareOptions(version=version, drop_duplicates_of=tuple(map(str, evaluated)))
    collection = image_folder.collection(CollectionRequest(str(source)))
    return prepare(collection, output, options, tasks.process_runner(1), Screen(io.StringIO()))


def left_out(data_set):
    names = data_set.table["name"]
    return {names[row].as_py(): why for row, why in data_set.assignment.left_out.items()}


def test_a_folder_a_data_set_and_saved_hashes_agree(tmp_path):
    large = {f"{i}.jpg": jpeg(i, (160, 120), quality=95) for i in range(8)}
    smaller = io.BytesIO()
    Image.open(io.BytesIO(large["3.jpg"])).resize((80, 60)).save(smaller, "JPEG", quality=80)
    test_set = folder_of(
        tmp_path / "test_set",
        {"same.jpg": large["1.jpg"], "smaller.jpg": smaller.getvalue(), "other.jpg": jpeg(99)},
    )
    as_data_set = prepared(test_set, tmp_path / "evaluation").folder
    # As in a set made elsewhere, whose labels are not read.
    (as_data_set / "catalogue.parquet").unlink()
    described = {"image": features.Image(), "label": features.Text()}
    features.FeaturesDict(described).save_config(str(as_data_set))

    train = folder_of(tmp_path / "train", large)
    by_folder = prepared(train, tmp_path / "one", test_set)
    assert left_out(by_folder) == {
        "class1/1.jpg": "in_evaluation:test_set",
        "class1/3.jpg": "in_evaluation:test_set",
    }
    assert by_folder.assignment.copies.by_look == 1
    by_data_set = prepared(train, tmp_path / "two", as_data_set)
    saved = by_folder.folder / "evaluations" / "test_set.parquet"
    by_hashes = prepared(train, tmp_path / "three", saved)
    assert by_folder.digest == by_data_set.digest == by_hashes.digest
    assert set(left_out(by_data_set).values()) == {"in_evaluation:image_folder"}
    notes = [read_note(one.folder) for one in (by_folder, by_data_set, by_hashes)]
    digests = [next(iter(one["evaluations"].values())) for one in notes if one]
    assert len(digests) == 3 and len(set(digests)) == 1


def test_links_to_folders_are_followed(tmp_path, monkeypatch):
    """As in a collection; in a circle they end."""
    train = folder_of(tmp_path / "train", {f"{i}.jpg": jpeg(i) for i in range(6)})
    test_set = folder_of(tmp_path / "test_set", {"a.jpg": jpeg(1)})
    folder_of(tmp_path / "elsewhere", {"b.jpg": jpeg(2), "c.jpg": jpeg(3)})
    (test_set / "class1").symlink_to(tmp_path / "elsewhere")
    (test_set / "class0" / "again").symlink_to(test_set)
    (tmp_path / "elsewhere" / "class2").symlink_to(test_set / "class0")
    found = left_out(prepared(train, tmp_path / "out", test_set))
    assert set(found) == {"class0/2.jpg", "class1/1.jpg", "class1/3.jpg"}

    scan = os.scandir

    def failing(path):
        if path.endswith("class1"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    # Simulated, since permissions do not stop root.
    monkeypatch.setattr(os, "scandir", failing)
    with refused("class1", os.strerror(errno.EACCES)):
        evaluation_sets.load([str(test_set)], lambda *_: pytest.fail("it is not complete"))


def test_an_evaluation_set_that_changes_in_between_is_refused(tmp_path, monkeypatch):
    train = folder_of(tmp_path / "train", {f"{i}.jpg": jpeg(i) for i in range(4)})
    test_set = folder_of(tmp_path / "test_set", {"a.jpg": jpeg(1), "b.jpg": jpeg(50)})

    def full(*_, **__):
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("vit_jax.tools.prepare.pipeline._Preparation._write", full)
        with refused():
            prepared(train, tmp_path / "out", test_set)
    (test_set / "class0" / "a.jpg").write_bytes(jpeg(2))
    with refused("test_set"):
        prepared(train, tmp_path / "out", test_set)
    data_set = prepared(train, tmp_path / "out", test_set, version="2.0.0")
    assert left_out(data_set) == {"class0/2.jpg": "in_evaluation:test_set"}


def test_one_of_several_splits_must_be_named(tmp_path):
    images = {f"{i}.jpg": jpeg(i) for i in range(6)}
    collection = image_folder.collection(
        CollectionRequest(str(folder_of(tmp_path / "set", images)))
    )
    options = PrepareOptions(splits="test=2,train=rest")
    run = tasks.process_runner(1)
    folder = prepare(collection, tmp_path, options, run, Screen(io.StringIO())).folder

    def count(parts, _):
        images = [data for part in parts for _, data in evaluation_sets.examples(part)]
        return pa.table({"sha256": [hashlib.sha256(data or b"").digest() for data in images]})

    for split, number in {"test": 2, "train": 4, "all": 6}.items():
        (evaluation_set,) = evaluation_sets.load([f"{folder}:{split}"], count)
        assert (
            evaluation_set.name == f"image_folder-{split}" and len(evaluation_set.hashes) == number
        )
    for path in (f"{folder}", f"{folder}:tests"):
        with refused():
            evaluation_sets.load([path], count)
