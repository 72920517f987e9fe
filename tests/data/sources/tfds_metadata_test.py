import json

import pytest

from tests.messages import refused
from vit_jax.data.sources.tfds import read_info
from vit_jax.data.sources.tfds_labels import class_names

CORE = "tensorflow_datasets.core.features"
IMAGE = {
    "image": {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}},
    "pythonClassName": f"{CORE}.image_feature.Image",
}
LABEL = {
    "classLabel": {"numClasses": "3"},
    "pythonClassName": f"{CORE}.class_label_feature.ClassLabel",
}


def write(folder, features, **info):
    split = {"name": "train", "numBytes": "1", "shardLengths": ["1"]}
    document = {"fileFormat": "tfrecord", "name": "pets", "splits": [split], "version": "1.0.0"}
    (folder / "dataset_info.json").write_text(json.dumps(document | info))
    (folder / "features.json").write_text(json.dumps(features))
    return str(folder)


def features_dict(**features):
    return {
        "featuresDict": {"features": features},
        "pythonClassName": f"{CORE}.features_dict.FeaturesDict",
    }


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module `evil` in the current folder; the returned file exists once it was imported."""
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ran


def sequence(feature):
    return {
        "pythonClassName": f"{CORE}.sequence_feature.Sequence",
        "sequence": {"feature": feature, "length": "-1"},
    }


EVIL = {"pythonClassName": "evil.Feature", "jsonFeature": {"json": "{}"}}
# A feature inside the string that describes another feature.
HIDDEN = {
    "pythonClassName": f"{CORE}.sequence_feature.Sequence",
    "jsonFeature": {
        "json": json.dumps({"feature": {"type": "evil.F", "content": {}}, "length": None})
    },
}


@pytest.mark.parametrize(
    "features",
    [
        EVIL,
        features_dict(image=IMAGE, label=EVIL),
        features_dict(image=IMAGE, labels=sequence(EVIL)),
        features_dict(image=IMAGE, label=LABEL, other=features_dict(inner=sequence(EVIL))),
        features_dict(image=IMAGE, label={"python_class_name": "evil.F", "class_label": {}}),
        features_dict(image=IMAGE, label=HIDDEN),
        {"type": "evil.Feature", "content": {}},
        {
            "type": f"{CORE}.features_dict.FeaturesDict",
            "content": {"image": {"type": "evil.Feature", "content": {}}},
        },
        {"pythonClassName": "tensorflow_datasets/../evil.F"},
        {"pythonClassName": ".evil.F"},
    ],
)
def test_only_classes_of_tfds_are_imported(tmp_path, evil, features):
    with refused("features.json", "evil.F"):
        read_info(write(tmp_path, features))
    assert not evil.exists()


def test_nothing_else_in_the_metadata_names_code(tmp_path, evil):
    """TFDS's note of the module that wrote the data is only displayed."""
    good = features_dict(image=IMAGE, label=LABEL, type=sequence(LABEL))
    info = read_info(write(tmp_path, good, moduleName="evil", configName="evil.Config"))
    assert sorted(info.features) == ["image", "label", "type"]
    with refused("evil.Format"):
        read_info(write(tmp_path, good, fileFormat="evil.Format"))
    assert not evil.exists()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"cat\ndog\nfish\n", ("cat", "dog", "fish")),
        (b"cat\ndog\nfish\n\n\n", ("cat", "dog", "fish")),
        (b"cat\r\ndog\r\nfish\r\n", ("cat", "dog", "fish")),
        # Folders may have such names.
        (b"cat\n \nfish\n", ("cat", " ", "fish")),
        (b" cat\ncat\ncat \n", (" cat", "cat", "cat ")),
        ("Käse\u2028\nb\x0bc\nd".encode(), ("Käse\u2028", "b\x0bc", "d")),
    ],
)
def test_every_line_names_its_class(tmp_path, content, names):
    (tmp_path / "label.labels.txt").write_bytes(content)
    assert class_names(str(tmp_path), "label", 3) == names
    assert class_names(str(tmp_path), "labels", 3) is None


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"cat\ndog\n", "features.json"),
        (b"cat\n\nfish\n", "features.json"),
        (b"a\nb\nc\nd\n", "features.json"),
        (b"", "features.json"),
        (b"cat\ndog\ncat\n", "'cat'"),
        (b"cat\nK\xe4se\ndog\n", "0xe4"),
    ],
)
def test_names_that_would_belong_to_other_classes(tmp_path, content, name):
    (tmp_path / "label.labels.txt").write_bytes(content)
    with refused("label.labels.txt", name):
        class_names(str(tmp_path), "label", 3)
