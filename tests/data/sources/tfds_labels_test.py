"""Labels other than `label`: features of tiny data sets that are declared as TFDS declares them."""

import numpy as np
import pytest
from tensorflow_datasets import features as f

from tests.data.sources.tfds_test import write_info
from tests.messages import refused
from vit_jax.data import label_index
from vit_jax.data.host_tf import tf
from vit_jax.data.sources import table as sources

BLACK = np.zeros([4, 4, 3], np.uint8)
OBJECTS = {
    "clevr": f.Sequence(
        {
            "size": f.ClassLabel(names=["small", "large"]),
            "pixel_coords": f.Tensor(shape=(3,), dtype=np.float32),
        }
    ),
    "kitti": f.Sequence(
        {
            "type": f.ClassLabel(names=["Car", "Van", "Truck", "Pedestrian", "Cyclist", "Tram"]),
            "location": f.Tensor(shape=(3,), dtype=np.float32),
        }
    ),
}
CARS = {"Car": 0, "Truck": 2, "Pedestrian": 3}


pytestmark = pytest.mark.usefixtures("cache_folder")


def write(folder, name, features, examples):
    """A data set with the split `train`, its records encoded by TFDS."""
    folder.mkdir(parents=True)
    described = f.FeaturesDict({"image": f.Image(shape=(None, None, 3)), **features})
    described.save_config(str(folder))
    records = [
        described.serialize_example(described.encode_example({"image": BLACK, **example}))
        for example in examples
    ]
    with tf.io.TFRecordWriter(str(folder / f"{name}-train.tfrecord-00000-of-00001")) as writer:
        for record in records:
            writer.write(record)
    write_info(folder, name, [len(records)])
    return folder


def opened(folder, label=None, **changed):
    arguments = {"num_examples": None, "num_classes": None, "image_size": (1, 1)} | changed
    return sources.create(
        "tfds", sources.Request(data_dir=str(folder), split="train", label=label, **arguments)
    )


def labels(source):
    return [e.labels[0] for e in source.read(np.arange(source.num_examples))]


def test_a_list_of_labels_beside_a_label(tmp_path):
    features = {
        "label": f.ClassLabel(num_classes=3),
        "labels": f.Sequence(f.ClassLabel(num_classes=5)),
    }
    folder = write(tmp_path / "1.0.0", "x", features, [{"label": 2, "labels": [4, 1]}])
    usual, several = opened(folder), opened(folder, "labels")
    assert usual.read(np.array([0]))[0].labels == (2,)
    assert several.read(np.array([0]))[0].labels == (4, 1)
    assert (usual.num_classes, several.num_classes) == (3, 5)
    assert opened(folder, "label").fingerprint == usual.fingerprint != several.fingerprint


def scene(*depths):
    return {"objects": [{"size": 1, "pixel_coords": [300, 200, depth]} for depth in depths]}


def street(**depths):
    return {
        "objects": [
            {"type": CARS[name], "location": [-3, 1, depth]} for name, depth in depths.items()
        ]
    }


@pytest.fixture(scope="module")
def clevr(tmp_path_factory):
    scenes = [scene(12, 8.0, 9), scene(*[20] * 10), scene(9.4, 9.6, 9.7, 10.5), scene(*[10] * 5)]
    folder = tmp_path_factory.mktemp("data") / "clevr/3.1.0"
    return write(folder, "clevr", {"objects": OBJECTS["clevr"]}, scenes)


def test_clevr(clevr):
    count, distance = opened(clevr, "clevr_count"), opened(clevr, "clevr_distance")
    assert labels(count) == [0, 7, 1, 2]
    assert (count.num_classes, count.class_names[0]) == (8, "3 objects")
    # The closest at 8, 20, 9.4 and 10: a border belongs to the class below.
    assert labels(distance) == [0, 5, 3, 4]
    assert distance.class_names == (
        "up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "above 10",
    )  # fmt: skip
    assert len({count.fingerprint, distance.fingerprint}) == 2
    assert label_index.find(distance).labels.tolist() == [0, 5, 3, 4]


def test_kitti(tmp_path):
    streets = [
        street(Car=8.0, Pedestrian=2.0), street(Truck=20.5, Car=21.0), street(Pedestrian=1.0),
        street(), street(Pedestrian=50.0, Car=15.0),
    ]  # fmt: skip
    source = opened(
        write(tmp_path / "kitti", "kitti", {"objects": OBJECTS["kitti"]}, streets), "kitti_distance"
    )
    assert labels(source) == [0, 2, 3, 3, 1]
    assert source.class_names == ("up to 8", "8 to 20", "above 20", "no vehicle")


def test_features_of_one_number(tmp_path):
    features = {
        "label_orientation": f.ClassLabel(num_classes=40),
        "label_x_position": f.ClassLabel(num_classes=32),
        "value": f.Scalar(np.float32),
        "instance": f.Scalar(np.int64),
    }
    values = [(0, 0), (2, 1), (3, 2), (39, 31)]
    examples = [
        {"label_orientation": o, "label_x_position": x, "value": 1.5, "instance": o}
        for o, x in values
    ]
    folder = write(tmp_path / "dsprites", "dsprites", features, examples)
    assert labels(opened(folder, "dsprites_orientation")) == [0, 0, 1, 15]
    assert labels(opened(folder, "dsprites_location")) == [0, 0, 1, 15]
    plain = opened(folder, "label_orientation")
    assert (labels(plain), plain.num_classes) == ([0, 2, 3, 39], 40)
    assert opened(folder, "instance", num_classes=50).num_classes == 50
    for label in ("value", "image", "label_x_positoin"):
        with refused(label):
            opened(folder, label)
    with refused("evals.x.label=clevr_count"):
        opened(folder, "clevr_count", where="evals.x")
    with refused("input.label"):
        opened(folder)


def test_examples_without_a_class_are_named(clevr, tmp_path):
    scenes = [scene(1, 2, 3), scene()]
    folder = write(tmp_path / "clevr", "clevr", {"objects": OBJECTS["clevr"]}, scenes)
    for label in ("clevr_count", "clevr_distance"):
        with refused(label):
            labels(opened(folder, label))


@pytest.mark.parametrize(
    ("name", "feature", "value"),
    [
        ("labels", f.Tensor(shape=(3,), dtype=np.int64), [1, 0, 1]),
        ("labels", f.Sequence(f.Text()), ["cat"]),
        ("labels", f.Sequence({"class": f.ClassLabel(num_classes=3)}), [{"class": 1}]),
        ("label", f.Scalar(np.float32), 1.5),
    ],
    ids=["several hot", "text", "dictionary", "float"],
)
def test_labels_that_are_not_numbers_of_classes_are_refused(tmp_path, name, feature, value):
    folder = write(tmp_path / "1.0.0", "x", {name: feature}, [{name: value}])
    with refused(folder, name, "ClassLabel"):
        opened(folder, num_classes=3)


@pytest.mark.parametrize(
    "image",
    [f.Image(shape=(4, 4, 1), dtype=np.float32), f.Sequence(f.Image()), f.Scalar(np.int64)],
    ids=["floats", "several", "number"],
)
def test_images_that_are_not_one_encoded_image_are_refused(tmp_path, image):
    """TFDS stores a float as the four bytes of an RGBA pixel."""
    features = {"image": image, "label": f.ClassLabel(num_classes=3)}
    folder = write(tmp_path / "1.0.0", "x", features, [])
    with refused(folder, "`image`"):
        opened(folder)
