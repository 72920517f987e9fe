"""Sets by name, laid out as the published ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core import synsets
from vit_jax.data.sources import table
from vit_jax.evaluate import data_sets
from vit_jax.run.parts import eval_data, examples, inputs
from vit_jax.run.parts.eval_data import ModelClasses


@pytest.fixture
def folder(tmp_path):
    """Makes a folder with an image for each class."""

    def make(*classes):
        for name in classes:
            (tmp_path / "set" / name).mkdir(parents=True)
            image = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
            image.save(tmp_path / "set" / name / "0.png")
        return str(tmp_path / "set")

    return make


def on_data(*data, kinds=("classification",), **more):
    arguments = {"split": None, "labels": None, "classes": None} | more
    values = data_sets.on_data(data, kinds=kinds, batch_size=8, **arguments)
    return configs.resolve(values).evals


def test_folders_are_named_by_their_split_or_as_one_says(folder):
    data = folder("cat", "dog")
    (evaluation,) = on_data(data).items()
    assert evaluation[0] == "all" and evaluation[1].calibration
    assert set(on_data(f"a={data}", f"b={data}")) == {"a", "b"}
    assert set(on_data(data, kinds=("classification", "frozen"))) == {
        "all_classification", "val_frozen",
    }  # fmt: skip
    with refused("--data"):
        on_data(data, data)
    with refused("'tset'"):
        on_data(data, split="tset")


def test_a_split_that_is_there_and_wrong_is_not_passed_over(folder, tmp_path):
    """Or the numbers of another one would be taken for its."""
    data = folder("val/cat", "val/dog", "test/cat", "test/dog")
    (tmp_path / "set" / "test" / "dog" / "0.png").unlink()
    with refused("test"):
        on_data(data)


@pytest.mark.parametrize("row", ["missing.png,cat", "cat/0.png,"])
def test_a_table_with_a_bad_row_is_not_scored_in_part(folder, row):
    data = Path(folder("cat", "dog"))
    (data / "labels.csv").write_text(f"image,label\ncat/0.png,cat\ndog/0.png,dog\n{row}\n")
    with refused(row.partition(",")[0]):
        on_data(str(data / "labels.csv"))


def test_a_table_is_read_as_overrides_say(folder):
    data = Path(folder("cat", "dog"))
    table = data / "odd.csv"
    table.write_text("picture_of,what\ncat/0.png,cat|dog\ndog/0.png,dog\n")
    with refused("input.image_column"):
        on_data(str(table))
    with refused("input.image_column=picture_of", "image_folder"):
        on_data(str(data), overrides=["input.image_column=picture_of"])
    overrides = ["input.image_column=picture_of", "input.label_separator=|"]
    for label in ("input.label=what", "evals.all.label=what"):
        (evaluation,) = on_data(str(table), overrides=[*overrides, label]).values()
        assert evaluation.calibration is False  # two labels
    # As later evaluations are, so is the split that was trained on.
    overrides.append("input.label=what")
    source = examples.source(
        configs.resolve(
            {
                "input": {
                    "source": "image_table", "data_dir": str(table), "split": "train",
                    "image_column": "picture_of", "label": "what", "label_separator": "|",
                },
            }
        ).input
    )  # fmt: skip
    trained_on = {source.fingerprint}
    assert set(on_data(str(table), overrides=overrides, trained_on=trained_on)) == {"val"}


def test_sigmoids_have_no_calibration(folder):
    (evaluation,) = on_data(folder("cat", "dog"), sigmoid=True).values()
    assert evaluation.calibration is False


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_a_set_of_two_hundred_classes_is_complete(folder, name):
    ids = synsets.imagenet_sets()[name]
    data = folder(*ids)
    (evaluation,) = on_data(f"{name}={data}").values()
    assert evaluation.classes is None
    classes = ModelClasses(1000, tuple(synsets.names_1k().values()))
    config = configs.resolve(
        {"evals": {name: {"source": "image_folder", "data_dir": data, "split": "all"}}},
        ("evals." + name + ".preprocess=decode|resize(8)", "input.batch_size=8"),
    )
    read = eval_data.eval_data(name, config, classes, inputs.mesh(config.mesh), (8, 8))
    known = list(synsets.names_1k())
    assert [known[column] for column in read.columns] == list(ids)
    with refused("ra"[name > "imagenet_b"]):
        on_data(f"imagenet_{'ra'[name > 'imagenet_b']}={data}")


def test_objectnets_frame_is_cut_off_and_its_labels_are_several(folder):
    data = folder("alarm_clock", "air_freshener")
    for evaluation in (on_data(f"objectnet={data}"), on_data(data, classes="objectnet")):
        (found,) = evaluation.values()
        assert (found.classes, found.calibration) == ("objectnet", False)
        assert found.preprocess == "crop_border(2)|weights"


@pytest.mark.parametrize(("name", "classes"), [("7", "imagenet_v2"), ("n01440764", None)])
def test_classes_of_imagenet_v2_are_numbers_or_ids(folder, name, classes):
    (found,) = on_data(f"imagenet_v2={folder(name)}").values()
    assert (found.classes, found.calibration) == (classes, True)


def test_reals_labels_are_asked_for(folder, tmp_path):
    data = folder("n01440764")
    with refused("imagenet_real", "--labels"):
        on_data(f"imagenet_real={data}")
    (found,) = on_data(f"imagenet_real={data}", labels="real.json").values()
    assert (found.labels, found.calibration) == ("real.json", False)
    (found,) = on_data(data, labels="real.json").values()
    assert found.labels == "real.json"


def test_features_of_a_folder_without_parts_are_scored_on_images_apart(folder):
    data = folder("a")
    found = on_data(data, kinds=("frozen", "classification"))
    assert found["val_frozen"].split == "val"
    assert found["all_classification"].split == "all"
    assert on_data(data, split="all", kinds=("frozen",))["all"].split == "all"  # refused later
    assert set(on_data(data, split="train[:1]")) == {"of_train"}


def test_images_that_were_trained_on_are_not_scored(folder, tmp_path):
    data = folder(*"abcdefghijkl")
    source = table.create("image_folder", table.Request("train", data))
    run = {"config": {}, "fingerprint": {"input": source.fingerprint}, "runs": []}
    step = epath.Path(tmp_path / "run/checkpoints/3")
    step.mkdir(parents=True)
    assert data_sets.training_fingerprints([step]) == set()  # it does not say
    (tmp_path / "run/config.json").write_text(json.dumps(run))
    trained_on = data_sets.training_fingerprints([step])
    assert trained_on == {source.fingerprint}
    assert set(on_data(data, trained_on=trained_on)) == {"val"}
    assert set(on_data(data, trained_on=trained_on, split="all")) == {"all"}
    assert set(on_data(data, trained_on={"another"})) == {"all"}


@pytest.mark.parametrize("kinds", [(), ("few",), ("frozen", "frozen"), ("pictures",)])
def test_kinds_are_known_and_said_once(folder, kinds):
    with refused("--kinds"):
        on_data(folder("a"), kinds=kinds)
