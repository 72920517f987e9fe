"""From archives to a data set that TFDS and training read."""

import dataclasses
import hashlib
import io
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.messages import refused
from tests.tools.prepare.conftest import SYNSETS, jpeg, tar
from vit_jax.core import synsets
from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.data import label_index
from vit_jax.data.source import Request
from vit_jax.data.sources.tfds import Tfds
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.tools.prepare import image_folder, imagenet, report_files, tasks
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions
from vit_jax.tools.prepare.pipeline import WHOLE, prepare

SMALL = PrepareOptions(splits="test=5,validation=5,train=rest", shard_mib=0.02)


def prepared(collection, output, options=SMALL, num_workers=1, share=WHOLE):
    run = tasks.process_runner(num_workers)
    return prepare(collection, output, options, run, Screen(io.StringIO()), share)


def files(folder):
    """Digests of a data set's files, except those that contain times."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in (NOTE, "report.json", "report.html")
    }


def test_an_archive_becomes_a_data_set(tmp_path, imagenet21k, synset_tars):
    data_set = prepared(imagenet.imagenet21k(CollectionRequest(str(imagenet21k))), tmp_path / "out")
    assert {name: len(rows) for name, rows in data_set.assignment.splits.items()} == {
        "test": 5,
        "validation": 5,
        "train": 20,
    }
    source = Tfds(Request("train", str(tmp_path / "out")))
    assert source.num_classes == 21_843 and source.num_examples == 20
    assert source.class_names is not None and source.class_names[0] == "n00004475 organism, being"
    examples = source.read(np.arange(20))
    assert all(example.image in synset_tars[_tar(example.labels[0])] for example in examples)
    index = label_index.read(data_set.folder / label_index.file_name("train"))
    assert index.labels.tolist() == [example.labels[0] for example in examples]
    by_tfds = tfds.builder_from_directory(data_set.folder).as_data_source(split="train")
    assert [one["label"] for one in by_tfds] == [example.labels[0] for example in examples]


def _tar(label):
    return f"{list(synsets.names())[label]}.tar"


@pytest.mark.parametrize("kind", ["tars", "workers"])
def test_a_folder_of_tars_and_more_workers_give_the_same_set(
    tmp_path, imagenet21k, synset_tars, kind
):
    source, options = imagenet21k, dataclasses.replace(SMALL, stratify=kind == "workers")
    one = prepared(imagenet.imagenet21k(CollectionRequest(str(source))), tmp_path / "one", options)
    if kind == "tars":
        source = tmp_path / "tars"
        source.mkdir()
        for name, data in synset_tars.items():
            (source / name).write_bytes(data)
    collection = imagenet.imagenet21k(CollectionRequest(str(source)))
    other = prepared(collection, tmp_path / "other", options, num_workers=1 + (kind == "workers"))
    assert one.digest == other.digest and files(one.folder) == files(other.folder)


def test_images_of_several_classes_are_merged_or_dropped(tmp_path):
    same = jpeg(1)
    source = tmp_path / "all.tar"
    tars = {
        f"{synset}.tar": tar({f"{synset}_0.JPEG": same, f"{synset}_1.JPEG": jpeg(2 + k)})
        for k, synset in enumerate(SYNSETS)
    }
    source.write_bytes(tar(tars))
    collection = imagenet.imagenet21k(CollectionRequest(str(source)))
    counts = {}
    for duplicates in ("keep", "drop", "merge"):
        options = PrepareOptions(splits="train=rest", duplicates=duplicates)
        data_set = prepared(collection, tmp_path / duplicates, options)
        counts[duplicates] = len(data_set.assignment.splits["train"])
    assert counts == {"keep": 6, "drop": 4, "merge": 4}
    merged = Tfds(Request("train", str(tmp_path / "merge")))
    labels = list(synsets.names())
    all_of_them = tuple(labels.index(synset) for synset in SYNSETS)
    examples = merged.read(np.arange(4))
    assert [e.labels for e in examples if e.image == same] == [all_of_them]
    index = merged.stored_labels()
    assert index is not None and index.labels.tolist() == [c for e in examples for c in e.labels]
    assert merged.max_labels == len(SYNSETS) and not merged.weighted


def test_other_options_are_refused_in_the_same_folder(tmp_path, imagenet21k):
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    prepared(collection, tmp_path)
    with refused("'keep'"):
        prepared(collection, tmp_path, dataclasses.replace(SMALL, duplicates="drop"))


MISTAKES = {
    "version": ("1", "../x", "\uff11.0.0"),
    "splits": ("train", "all=rest", "a=1", "a=rest,a=1", "a=0,b=rest", "A=rest"),
    "policy": (("gray",), ("grey:keep",)),
    "drop_duplicates_of": (("nowhere",),),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_impossible_options_are_refused_before_images_are_read(
    tmp_path, imagenet21k, monkeypatch, name
):
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    for mistake in MISTAKES[name]:
        with monkeypatch.context() as patch, pytest.raises(UserError) as raised:
            patch.setattr(tasks, "read_part", lambda _: pytest.fail("an image was read"))
            prepared(collection, tmp_path, dataclasses.replace(SMALL, **{name: mistake}))
        assert raised.value.field == f"--{name}"
    prepared(collection, tmp_path)  # and correct options resume


def test_a_split_that_means_all_is_refused(tmp_path):
    """TFDS would read such a set without an end."""
    for split in ("all", "train"):
        (tmp_path / "photos" / split / "class").mkdir(parents=True)
        (tmp_path / "photos" / split / "class" / "1.jpg").write_bytes(jpeg(1))
    with refused("'all'"):
        image_folder.collection(CollectionRequest(str(tmp_path / "photos")))


def test_options_may_change_until_files_are_written(tmp_path, imagenet21k, monkeypatch):
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    with refused("--splits"):
        prepared(collection, tmp_path / "one", dataclasses.replace(SMALL, splits="b=99,a=rest"))
    (tmp_path / "test_set").mkdir()
    (tmp_path / "test_set" / "1.jpg").write_bytes(jpeg(1))
    options = dataclasses.replace(
        SMALL, duplicates="drop", drop_duplicates_of=(str(tmp_path / "test_set"),)
    )
    whole = prepared(collection, tmp_path / "whole", options)
    with monkeypatch.context() as patch:
        read = tasks.read_part
        hashes = lambda task: read(task) if task.part.reader == tasks.FILES else pytest.fail()
        patch.setattr(tasks, "read_part", hashes)  # the collection is not read again
        data_set = prepared(collection, tmp_path / "one", options)
    assert files(data_set.folder) == files(whole.folder)
    other = dataclasses.replace(SMALL, policy=("gray:set_aside",), max_image_pixels=100)
    with refused("--splits"):
        prepared(collection, tmp_path / "two", other)
    assert prepared(collection, tmp_path / "two").splits == prepared(collection, tmp_path).splits


def test_label_order_of_the_released_heads():
    names = list(synsets.names())
    assert len(names) == 21_843 and names == sorted(names)
    assert names.index("n01440764") == 359 and names[-1] == "n15102894"
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    assert digest == "c03345e3490e010defaeac86b00012db28ecb79af13daba0b72525fa37c66e94"


def test_a_finished_preparation_is_not_repeated(tmp_path, imagenet21k):
    collection = imagenet.imagenet21k(CollectionRequest(str(imagenet21k)))
    options = dataclasses.replace(SMALL, duplicates="drop")
    first = prepared(collection, tmp_path, options)
    left = {path.name for path in (first.folder / ".preparing").iterdir()}
    assert left == {"lock", "options.json"}
    nothing = lambda *_: pytest.fail("there is nothing to do")
    again = prepare(collection, tmp_path, options, nothing, Screen(io.StringIO()))
    assert again.digest == first.digest and again.splits == first.splits
    before = files(first.folder)
    (first.folder / NOTE).unlink()
    prepared(collection, tmp_path, options)
    assert files(first.folder) == before
    imagenet21k.write_bytes(imagenet21k.read_bytes() + bytes(512))
    with refused("--version"):
        prepared(collection, tmp_path, options)


@pytest.fixture
def photos(tmp_path):
    for i in range(6):
        path = tmp_path / "photos" / "class" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(i))
    return tmp_path / "photos"


def test_an_image_that_was_replaced_is_noticed(tmp_path, photos):
    """Noticed although its folder does not change."""
    collection = image_folder.collection(CollectionRequest(str(photos)))
    prepared(collection, tmp_path, PrepareOptions())
    (photos / "class" / "3.jpg").write_bytes(jpeg(9))
    with refused("--version"):
        prepared(collection, tmp_path, PrepareOptions())


def test_an_image_that_changes_before_it_is_written(tmp_path, photos, monkeypatch):
    collection = image_folder.collection(CollectionRequest(str(photos)))
    changed, write = photos / "class" / "3.jpg", tasks.write_shard
    longer = jpeg(9) + bytes(1000)  # no read would be too short

    def late(task):
        changed.write_bytes(longer)
        return write(task)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_shard", late)
        with refused("--version"):
            prepared(collection, tmp_path, PrepareOptions())
    prepared(collection, tmp_path, PrepareOptions())
    source = Tfds(Request("train", str(tmp_path)))
    assert longer in [example.image for example in source.read(np.arange(6))]


def test_a_set_that_an_earlier_version_made_is_read(tmp_path, photos):
    """The report of such a set lacks mirrored looks."""
    collection = image_folder.collection(CollectionRequest(str(photos)))
    made = prepared(collection, tmp_path, PrepareOptions())
    for name, change in (
        ("report.json", lambda content: content["duplicates"].pop("mirrored")),
        ("report.json", lambda content: content["classes"].pop("only_elsewhere")),
        (NOTE, lambda content: content["files"].pop("report.json")),
        (".preparing/options.json", lambda content: content.pop("mirrored_duplicates")),
    ):
        content = json.loads((made.folder / name).read_text())
        change(content)
        (made.folder / name).write_text(json.dumps(content))
    data_set = prepared(collection, tmp_path, PrepareOptions())
    assert data_set.digest == made.digest
    assert report_files.findings(report_files.read(made.folder)) == []
    with refused("--version"):
        prepared(collection, tmp_path, PrepareOptions(near_bits=3))
