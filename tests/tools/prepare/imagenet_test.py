"""ImageNet-1k with its own labels and with ReaL's, and ImageNet-V2."""

import gzip
import json

import numpy as np
import pytest

from tests.messages import refused
from tests.tools.prepare.conftest import jpeg, tar
from tests.tools.prepare.pipeline_test import prepared
from vit_jax.data.source import Request
from vit_jax.data.sources.tfds import Tfds
from vit_jax.tools.prepare import imagenet
from vit_jax.tools.prepare.collection import CollectionRequest, PrepareOptions

VALIDATION = [f"ILSVRC2012_val_{i:08}.JPEG" for i in (1, 2, 3)]
# From TFDS's list: n01751748, n09193705 and n02105855.
LABELS = (65, 970, 230)
SMALL = PrepareOptions(shard_mib=0.02)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "imagenet"
    folder.mkdir()
    train = {
        f"{synset}.tar": tar({f"{synset}_{i}.JPEG": jpeg(10 * k + i) for i in range(2)})
        for k, synset in enumerate(("n01440764", "n04399382"))
    }
    (folder / imagenet.TRAIN[0]).write_bytes(tar(train))
    validation = {name: jpeg(100 + i) for i, name in enumerate(VALIDATION)}
    (folder / imagenet.VALIDATION[0]).write_bytes(tar(validation))
    return folder


def test_labels_of_both_splits(tmp_path, source):
    collection = imagenet.imagenet2012(CollectionRequest(str(source)))
    assert collection.notes[0].startswith("Of the 1,000 synsets 998 have no tar, first n01443537")
    prepared(collection, tmp_path, SMALL)
    train = Tfds(Request("train", str(tmp_path)))
    assert train.num_classes == 1000 and train.class_names is not None
    assert train.class_names[0] == "n01440764 tench, Tinca tinca"
    assert sorted(example.labels for example in train.read(np.arange(4))) == [
        (0,), (0,), (850,), (850,)
    ]  # fmt: skip
    validation = Tfds(Request("validation", str(tmp_path)))
    labels = {example.image: example.labels for example in validation.read(np.arange(3))}
    assert labels == {jpeg(100 + i): (label,) for i, label in enumerate(LABELS)}


def test_unpacked_tars_give_the_same_set(tmp_path, source):
    unpacked = tmp_path / "unpacked"
    (unpacked / "train").mkdir(parents=True)
    (unpacked / "val").mkdir()
    for k, synset in enumerate(("n01440764", "n04399382")):
        images = {f"{synset}_{i}.JPEG": jpeg(10 * k + i) for i in range(2)}
        (unpacked / "train" / f"{synset}.tar").write_bytes(tar(images))
    for i, name in enumerate(VALIDATION):
        (unpacked / "val" / name).write_bytes(jpeg(100 + i))
    one, other = (
        prepared(imagenet.imagenet2012(CollectionRequest(str(folder))), tmp_path / name, SMALL)
        for name, folder in (("one", source), ("other", unpacked))
    )
    assert one.digest == other.digest


def test_one_of_the_tars_is_enough(source):
    (source / imagenet.TRAIN[0]).unlink()
    notes = imagenet.imagenet2012(CollectionRequest(str(source))).notes
    assert "train is left out" in notes[-1]
    (source / imagenet.VALIDATION[0]).unlink()
    with refused("--source"):
        imagenet.imagenet2012(CollectionRequest(str(source)))


def test_images_without_real_labels_are_set_aside(tmp_path, source):
    (source / "real.json").write_text(json.dumps([[65, 3], [], [230]] + [[0]] * 49_997))
    data_set = prepared(imagenet.imagenet2012_real(CollectionRequest(str(source))), tmp_path, SMALL)
    assert list(data_set.assignment.left_out.values()) == ["no_label"]
    validation = Tfds(Request("validation", str(tmp_path)))
    labels = {example.image: example.labels for example in validation.read(np.arange(2))}
    assert labels == {jpeg(100): (3, 65), jpeg(102): (230,)}


V2 = {f"{number}/{i}.jpeg": jpeg(7 * number + i) for number in (0, 11, 999) for i in range(2)}


def test_version_two_compressed_or_as_a_folder(tmp_path):
    folder = "imagenetv2-matched-frequency-format-val"
    archive = tmp_path / "imagenetv2-matched-frequency.tar.gz"
    archive.write_bytes(gzip.compress(tar({f"{folder}/{name}": V2[name] for name in V2})))
    for name, data in V2.items():
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_bytes(data)
    one, other = (
        prepared(
            imagenet.imagenet_v2(CollectionRequest(str(source))),
            tmp_path / "out" / source.name,
            SMALL,
        )
        for source in (archive, tmp_path / folder)
    )
    assert one.digest == other.digest
    test = Tfds(Request("test", str(one.folder)))
    labels = {example.image: example.labels for example in test.read(np.arange(6))}
    assert labels == {data: (int(name.partition("/")[0]),) for name, data in V2.items()}


def test_compressed_tars_that_are_damaged(tmp_path):
    whole = gzip.compress(tar(V2))
    for number, data in enumerate((whole[: len(whole) // 2], whole[:5000] + b"xx" + whole[5002:])):
        path = tmp_path / f"{number}.tar.gz"
        path.write_bytes(data)
        with refused(number):
            prepared(imagenet.imagenet_v2(CollectionRequest(str(path))), tmp_path / "out", SMALL)
