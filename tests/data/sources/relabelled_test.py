"""Labels of ImageNet's variants, on folders laid out as the published ones."""

import json

import numpy as np
import pytest

from tests.data.sources.image_folder_test import create, fill
from tests.messages import refused
from vit_jax.data import label_index
from vit_jax.data.source import NO_LABEL, Example
from vit_jax.data.sources import relabelled


def labels_by_file(source):
    """{"<class>/<file>": labels} of all examples, as they are read and as they are stored."""
    examples = source.read(np.arange(source.num_examples))
    found = {example.image.decode(): example.labels for example in examples}
    stored = label_index.find(source)
    np.testing.assert_array_equal(
        stored.labels, np.concatenate([example.labels for example in examples])
    )
    assert max(map(len, found.values())) <= source.max_labels
    return found


def test_folders_of_imagenet_v2_are_numbers_of_classes(tmp_path):
    for name in ("0", "1", "10", "999"):
        fill(tmp_path / name, ["a.jpeg"])
    source = relabelled.relabel_by_class(create(tmp_path, "all"), "imagenet_v2", where="evals.v2")
    expected = {"0/a.jpeg": (0,), "1/a.jpeg": (1,), "10/a.jpeg": (10,), "999/a.jpeg": (999,)}
    assert labels_by_file(source) == expected
    assert (source.num_classes, source.max_labels) == (1000, 1)
    assert source.class_names[10].startswith("n01530575 brambling")
    for wrong in ("1000", "cat"):
        fill(tmp_path / wrong, ["a.jpeg"])
        with refused(wrong):
            relabelled.relabel_by_class(create(tmp_path, "all"), "imagenet_v2", where="evals.v2")
        (tmp_path / wrong / "a.jpeg").unlink()
        (tmp_path / wrong).rmdir()


def test_folders_of_objectnet_are_one_or_several_classes_or_none(tmp_path):
    for name in ("alarm_clock", "banana", "air_freshener", "pen"):
        fill(tmp_path / "images" / name, ["1.png", "2.png"])
    whole = create(tmp_path / "images", "all")
    source = relabelled.relabel_by_class(whole, "objectnet", where="evals.objectnet")
    found = labels_by_file(source)
    assert {name.split("/")[0] for name in found} == {"alarm_clock", "banana", "pen"}
    named = lambda labels: sorted(source.class_names[c].split(" ", 1)[1] for c in labels)
    assert named(found["alarm_clock/1.png"]) == ["analog clock", "digital clock"]
    assert named(found["banana/2.png"]) == ["banana"]
    assert sorted(found["pen/1.png"]) == [418, 563, 749]  # ballpoint, fountain pen, quill
    assert (source.num_examples, source.max_labels) == (6, 3)
    assert source.describe(0).endswith(".png")
    assert source.fingerprint != whole.fingerprint
    fill(tmp_path / "others" / "air_freshener", ["1.png"])
    with refused("image_folder"):
        others = create(tmp_path / "others", "all")
        relabelled.relabel_by_class(others, "objectnet", where="evals.objectnet")


@pytest.fixture
def validation(tmp_path):
    """Images 1 to 4 of ImageNet's validation set, in the folders of their classes."""
    for number, synset in enumerate(("n01440764", "n01443537", "n01440764", "n15075141"), start=1):
        fill(tmp_path / "val" / synset, [f"ILSVRC2012_val_{number:08}.JPEG"])
    return tmp_path / "val"


def test_labels_of_real(validation, tmp_path):
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[0, 391], [], [5], [999]] + [[]] * 49_996))
    source = relabelled.relabel_by_file(create(validation, "all"), str(file), where="evals.real")
    image = "n{}/ILSVRC2012_val_0000000{}.JPEG".format
    assert labels_by_file(source) == {
        image("01440764", 1): (0, 391),
        image("01440764", 3): (5,),
        image("15075141", 4): (999,),
    }
    assert (source.num_examples, source.num_classes, source.max_labels) == (3, 1000, 2)
    file.write_text(json.dumps([[0, 391], [], [6], [999]]))
    other = relabelled.relabel_by_file(create(validation, "all"), str(file), where="evals.real")
    assert other.fingerprint != source.fingerprint


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (None, "https"),
        ("[[0], [1]", "JSON"),
        ('{"a": 1}', "999"),
        ("[[0], [1000], [], []]", "999"),
        ("[[0], 1, [], []]", "999"),
        ("[[0], [1]]", "00000002"),
        ("[[], [], [], []]", "4"),
    ],
)
def test_another_file_is_refused(validation, tmp_path, text, name):
    if text is not None:
        (tmp_path / "real.json").write_text(text)
    with refused("evals.real.labels", name):
        relabelled.relabel_by_file(
            create(validation, "all"), str(tmp_path / "real.json"), where="evals.real"
        )


def test_labels_of_the_classes_of_a_model_by_their_names(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        fill(tmp_path / name, ["a.jpeg"])
    plain = create(tmp_path, "all")
    source = relabelled.ByName(plain, ("zebra", "dog", "ant", "cat"))
    assert labels_by_file(source) == {"cat/a.jpeg": (3,), "dog/a.jpeg": (1,)}
    assert (source.num_classes, source.class_names[3]) == (4, "cat")
    assert "2 of the model's 4" in source.notes[-1]
    assert source.fingerprint != plain.fingerprint
    monkeypatch.setattr(plain, "read", lambda _: [Example(b"", (-1, 2, 1))])
    assert source.read(np.array([0]))[0].labels == (NO_LABEL, NO_LABEL, 1)


def test_images_without_a_number_are_refused(tmp_path):
    fill(tmp_path / "val" / "cat", ["cat.jpg"])
    (tmp_path / "real.json").write_text("[[0]]")
    with refused("cat.jpg"):
        relabelled.relabel_by_file(
            create(tmp_path / "val", "all"), str(tmp_path / "real.json"), where="evals.real"
        )
