import itertools
import json
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets import features as tfds_features
from tensorflow_datasets.core.utils.version import list_all_versions

from tests.messages import refused
from vit_jax.data import files, label_index, pipeline
from vit_jax.data.host_tf import tf
from vit_jax.data.source import Example, Request, single
from vit_jax.data.sources import table as sources
from vit_jax.data.sources.records import FileCache

CIFAR10 = Path(__file__).parents[4] / "shared/data/cifar10"
SHARDS = (5, 0, 7)


pytestmark = pytest.mark.usefixtures("cache_folder")


def record(number, labels, key="label"):
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"image %d\0" % number])),
        key: tf.train.Feature(int64_list=tf.train.Int64List(value=labels)),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_info(folder, name, shards, file_format="tfrecord"):
    """The dataset_info.json of the split `train`, whose files have so many examples each."""
    split = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "name": "train",
        "numBytes": "1000", "shardLengths": [str(n) for n in shards],
    }  # fmt: skip
    version = folder.name if folder.name[0].isdigit() else "1.0.0"
    info = {"fileFormat": file_format, "moduleName": "__main__", "name": name, "version": version}
    (folder / "dataset_info.json").write_text(json.dumps(info | {"splits": [split]}))


def write(folder, *, file_format="tfrecord", key="label", names="cat\ndog\nfish\n"):
    """Writes 12 examples in three files: example i shows "image i" and has label i mod 3."""
    folder.mkdir(parents=True)
    label = tfds_features.ClassLabel(num_classes=3)
    described = {"image": tfds_features.Image(shape=(None, None, 3)), key: label}
    tfds_features.FeaturesDict(described).save_config(str(folder))
    write_info(folder, "pets", SHARDS, file_format)
    if names:
        (folder / f"{key}.labels.txt").write_text(names)
    numbers = iter(range(sum(SHARDS)))
    for shard, size in enumerate(SHARDS):
        path = folder / f"pets-train.{file_format}-{shard:05d}-of-{len(SHARDS):05d}"
        records = [record(i, [i % 3], key) for _, i in zip(range(size), numbers, strict=False)]
        _writer(file_format)(path, records)
    return folder


def _writer(file_format):
    def tfrecord(path, records):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for data in records:
                writer.write(data)

    def array_record(path, records):
        module = pytest.importorskip("array_record.python.array_record_module")
        writer = module.ArrayRecordWriter(str(path), "group_size:1")
        for data in records:
            writer.write(data)
        writer.close()

    return {"tfrecord": tfrecord, "array_record": array_record}[file_format]


def create(folder, split="train", num_classes=None, cache=None, label_weights=True):
    return sources.create(
        "tfds",
        sources.Request(
            data_dir=None if folder is None else str(folder),
            split=split,
            num_classes=num_classes,
            cache=cache,
            label_weights=label_weights,
        ),
    )


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_reads_both_formats_at_random(tmp_path, file_format):
    source = create(write(tmp_path / "pets/1.0.0", file_format=file_format))
    assert (source.name, source.num_examples, source.num_classes) == ("pets", 12, 3)
    assert source.class_names == ("cat", "dog", "fish")
    order = np.random.default_rng(0).permutation(12)
    for i, example in zip(order, source.read(order), strict=True):
        assert example == Example(b"image %d\0" % i, (i % 3,))
    assert source.describe(4).endswith("-00000-of-00003, record 4")
    assert source.describe(5).endswith("-00002-of-00003, record 0")


def test_slices_are_parts_of_the_whole(tmp_path):
    folder = write(tmp_path / "1.0.0")
    source = create(folder, "train[4:8]")
    assert [e.image for e in source.read(np.arange(4))] == [b"image %d\0" % i for i in range(4, 8)]
    fingerprints = {create(folder, s).fingerprint for s in ("train", "train[4:8]", "train[4:9]")}
    assert len(fingerprints) == 3


def test_the_hash_of_a_prepared_set_tells_contents_of_one_size_apart(tmp_path):
    folder = write(tmp_path / "1.0.0")
    fingerprints = {create(folder).fingerprint}
    for content in "ab":
        (folder / "prepared.json").write_text(json.dumps({"content": content}))
        fingerprints.add(create(folder).fingerprint)
    assert len(fingerprints) == 3
    (folder / "prepared.json").write_text("{")
    with refused("prepared.json"):
        create(folder)


def remote_copy(folder):
    """Copies the data set to TensorFlow's in-memory file system, which stands for gs://."""
    remote = f"ram://{uuid.uuid4().hex}/{folder.name}"
    for path in folder.iterdir():
        tf.io.gfile.makedirs(remote)
        tf.io.gfile.copy(str(path), f"{remote}/{path.name}")
    return remote


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_remote_records_that_cannot_be_read_at_random(tmp_path, file_format):
    remote = remote_copy(write(tmp_path / "pets/1.0.0", file_format=file_format))
    with refused(remote, "input.cache=FOLDER"):
        create(remote)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_remote_data_are_read_from_copies(tmp_path, file_format, monkeypatch):
    """Works although the network fails now and then."""
    folder = write(tmp_path / "pets/1.0.0", file_format=file_format)
    label_index.write(folder / "labels-train.npz", single(np.arange(12) % 3))
    remote = remote_copy(folder)
    fail_every_third_call(monkeypatch)
    cache = FileCache(tmp_path / "near", None, lambda done, of: None)
    for split in ("train", "train[6:9]"):
        expected = create(folder, split)
        source = create(remote, split, cache=cache)
        everything = np.arange(source.num_examples)
        assert source.read(everything) == expected.read(everything)
        assert source.class_names == expected.class_names
        assert source.fingerprint == expected.fingerprint
        labels = source.stored_labels().labels
        np.testing.assert_array_equal(labels, expected.stored_labels().labels)
    assert source.describe(0).startswith(str(tmp_path / "near"))


def fail_every_third_call(monkeypatch):
    monkeypatch.setattr(files, "RETRY_SECS", (0, 0, 0, 0, 0, 0))
    calls = itertools.count(1)
    for name in ("stat", "listdir", "glob", "GFile"):
        monkeypatch.setattr(tf.io.gfile, name, _flaky(getattr(tf.io.gfile, name), calls))


def _flaky(function, calls):
    def call(*arguments):
        if next(calls) % 3 == 0:
            raise tf.errors.UnavailableError(None, None, "try later")
        return function(*arguments)

    return call


@pytest.mark.parametrize("key", ["label", "labels"])
def test_labels_are_read_from_their_file(tmp_path, key):
    folder = write(tmp_path / "1.0.0", key=key)
    by_reading = label_index.find(create(folder, "train[3:11]"))
    label_index.write(folder / "labels-train.npz", single(np.arange(12) % 3))
    source = create(folder, "train[3:11]")
    from_file = source.stored_labels()
    for actual, expected in zip(from_file, by_reading, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert source.max_labels == 1


def test_a_label_file_of_other_examples_is_refused(tmp_path):
    folder = write(tmp_path / "1.0.0")
    label_index.write(folder / "labels-train.npz", single(np.arange(13) % 3))
    with refused("train.npz"):
        label_index.find(create(folder))


def test_takes_the_folder_or_its_parent(tmp_path):
    write(tmp_path / "pets/1.9.0")
    write(tmp_path / "pets/1.10.0")
    for folder in (tmp_path, tmp_path / "pets", tmp_path / "pets/1.10.0"):
        assert "1.10.0" in create(folder).describe(0)
    assert "1.9.0" in create(tmp_path / "pets/1.9.0").describe(0)
    write(tmp_path / "birds/1.0.0")
    with refused("input.data_dir"):
        create(tmp_path)


@pytest.mark.parametrize("copy", ["1.0.0.bak", "11.0.0.incompleteXYZ", "01.2.3", "2.0", "latest"])
def test_a_copy_beside_a_version_is_not_read(tmp_path, copy):
    """TFDS knows the same versions."""
    write(tmp_path / "pets/1.0.0")
    shutil.copytree(tmp_path / "pets/1.0.0", tmp_path / "pets" / copy)
    shutil.copytree(tmp_path / "pets/1.0.0", tmp_path / "copy_of_pets")
    assert [str(version) for version in list_all_versions(tmp_path / "pets")] == ["1.0.0"]
    for folder in (tmp_path, tmp_path / "pets"):
        assert create(folder).location == str(tmp_path / "pets/1.0.0")
    assert create(tmp_path / "pets" / copy).location == str(tmp_path / "pets" / copy)
    shutil.rmtree(tmp_path / "pets/1.0.0")
    with refused(copy):
        create(tmp_path / "pets")


def test_missing_data_say_how_to_get_them(tmp_path):
    for folder in (None, tmp_path / "nowhere", tmp_path):
        with refused("input.data_dir", "download_and_prepare", "CIFAR-10", "imagenet2012"):
            create(folder)


def test_declared_number_of_classes(tmp_path):
    named, unnamed = write(tmp_path / "a/1.0.0"), write(tmp_path / "b/1.0.0", names=None)
    assert create(named, num_classes=3).num_classes == 3
    with refused("num_classes"):
        create(named, num_classes=4)
    assert create(unnamed).num_classes == 3
    assert create(unnamed, num_classes=4).num_classes == 4
    with refused("num_classes"):
        create(unnamed, num_classes=2)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: next(folder.glob("*-00002-of-00003")).unlink(), "-00002-of-00003"),
        (lambda folder: (folder / "features.json").unlink(), "features.json"),
        (lambda folder: (folder / "dataset_info.json").write_text("{"), "dataset_info.json"),
    ],
)
def test_missing_and_damaged_files_are_named(tmp_path, damage, named):
    folder = write(tmp_path / "1.0.0")
    with refused("'test'"):
        create(folder, "test")
    damage(folder)
    with refused(named):
        create(folder)


@pytest.mark.parametrize(
    ("feature", "fits"),
    [
        (tfds_features.Sequence(np.float16), True),
        (tfds_features.Sequence(np.int64), True),
        (tfds_features.Scalar(np.float32), True),
        (tfds_features.Sequence(tfds_features.Text()), False),
        (tfds_features.Sequence(tfds_features.Sequence(np.float32)), False),
        (tfds_features.Sequence({"weight": np.float32}), False),
        (tfds_features.Tensor(shape=(2,), dtype=np.float32, encoding="zlib"), False),
    ],
    ids=["float16", "int64", "one", "text", "nested", "dict", "encoded"],
)
def test_weights_in_unsupported_features_are_refused(tmp_path, feature, fits):
    folder = write(tmp_path / "1.0.0")
    described = {"image": tfds_features.Image(), "label": tfds_features.ClassLabel(num_classes=3)}
    tfds_features.FeaturesDict({**described, "label_weights": feature}).save_config(str(folder))
    if fits:
        assert create(folder).weighted
        return
    with refused("input.label_weights=false"):
        create(folder)
    assert not create(folder, label_weights=False).weighted


@pytest.mark.skipif(not CIFAR10.exists(), reason="needs the CIFAR-10 data set")
def test_cifar10_equals_what_tfds_reads():
    import tensorflow_datasets as tfds

    source = create(CIFAR10, "test[100:200]")
    builder = tfds.builder_from_directory(CIFAR10 / "3.0.2")
    expected = builder.as_dataset(
        split="test[100:200]", decoders={"image": tfds.decode.SkipDecoding()}
    )
    for actual, wanted in zip(source.read(np.arange(100)), expected, strict=True):
        assert actual == Example(wanted["image"].numpy(), (int(wanted["label"]),))


@pytest.mark.parametrize(("classes", "void"), [(3, 0), (4, None)])
def test_an_image_as_label_is_a_mask(tmp_path, classes, void):
    """As of oxford_iiit_pet: PNGs of one channel."""
    builder_features = tfds_features.FeaturesDict(
        {
            "image": tfds_features.Image(),
            "segmentation_mask": tfds_features.Image(shape=(None, None, 1)),
        }
    )
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 8, 8, 3), np.uint8)
    stored = rng.integers(0 if void is None else 1, 4, (5, 8, 8, 1), np.uint8)
    split = tfds.core.SplitInfo(
        name="train", shard_lengths=[5], num_bytes=1,
        filename_template=tfds.core.ShardedFileTemplate(
            dataset_name="pets", data_dir=tmp_path, split="train", filetype_suffix="tfrecord"
        ),
    )  # fmt: skip
    with tf.io.TFRecordWriter(str(tmp_path / "pets-train.tfrecord-00000-of-00001")) as file:
        for image, mask in zip(images, stored, strict=True):
            example = {"image": image, "segmentation_mask": mask}
            file.write(builder_features.serialize_example(example))
    tfds.folder_dataset.write_metadata(
        data_dir=str(tmp_path), features=builder_features, split_infos=[split], check_data=False,
        version="1.0.0",
    )  # fmt: skip
    request = Request(
        "train", str(tmp_path), label="segmentation_mask", num_classes=classes, void=void
    )
    data = sources.create("tfds", request)
    assert (data.num_classes, [kind.name for kind in data.maps]) == (classes, ["mask"])
    made = pipeline.eval_batches(
        data, "decode|resize(8)", batch_size=5, on_bad_image="fail", max_image_pixels=100, threads=1
    )
    with made as batches:
        found = next(batches)["mask"]
    wanted = stored[..., 0] if void == 0 else stored[..., 0] + 1
    np.testing.assert_array_equal(found, wanted)
    with refused("input.num_classes"):
        sources.create("tfds", request._replace(num_classes=None))
