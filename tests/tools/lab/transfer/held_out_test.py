"""What is looked at before a transfer: splits, classes, weights, folders."""

import numpy as np
import pytest
from etils import epath
from PIL import Image

from vit_jax.core.errors import UserError
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.tools.lab.transfer import held_out
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.protocol import FIXED
from vit_jax.tools.lab.transfer.task import Splits

RATES = "--config.optim.lr=1e-3,3e-3"


def find(task, *arguments, **fields):
    asked = task(RATES, *arguments, **fields)
    return held_out.find(asked, tasks.base_config(asked))


@pytest.mark.parametrize(
    ("split", "number", "choose", "rest"),
    [
        ("train", 0.1, "train[0:1293]", "train[1293:1437]"),
        ("train", 200, "train[0:1237]", "train[1237:1437]"),
        ("train[:1000]", 200, "train[0:800]", "train[800:1000]"),
        ("train[10%:]", 1, "train[144:1436]", "train[1436:1437]"),
        ("train[:9]+train[20:30]", 5, "train[0:9]+train[20:25]", "train[25:30]"),
        ("train[:9]+train[20:30]", 12, "train[0:7]", "train[7:9]+train[20:30]"),
    ],
)
def test_the_end_of_the_split_is_held_out(task, split, number, choose, rest):
    found = find(task, f"--config.input.split={split}", held_out=number)
    assert found == Splits(split, choose, rest)


def test_with_nothing_to_choose_nothing_is_held_out(task):
    asked = task()
    assert held_out.find(asked, tasks.base_config(asked)) == Splits("train", "", "")
    with pytest.raises(UserError, match="no split 'tset'"):
        asked = task("--config.evals.test.split=tset")
        held_out.find(asked, tasks.base_config(asked))


def test_named_splits(task):
    named = {"choose_split": "train[:800]", "held_out_split": "train[800:1000]"}
    assert find(task, **named) == Splits("train", "train[:800]", "train[800:1000]")


@pytest.mark.parametrize(
    ("arguments", "fields", "said"),
    [
        ([], {"held_out": 0.0001}, r"means 0 of the 1,437 examples of input.split=train"),
        ([], {"held_out": 1437}, r"give at least 1 and at most 1,436"),
        (["--config.input.split=tran"], {}, r"no split 'tran'. Did you mean 'train'"),
        (["--config.evals.test.split=tset"], {}, r"evals.test.split=.*Did you mean 'test'"),
        ([], {"choose_split": "train[:9]", "held_out_split": "val"}, r"no split 'val'.*test"),
        ([], {"choose_split": "train[:9]", "held_out_split": "train[8:20]"}, r"by heart"),
        ([], {"choose_split": "train", "held_out_split": "test"}, r"The test, test, .*--held"),
        ([], {"choose_split": "test", "held_out_split": "train"}, r"The test, test, .*--choose"),
        (["--config.evals.test.split=train[90%:]"], {}, r"The test, .*shares .* input.split"),
        (["--config.input.source=synthetic"], {}, r"has no splits"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be(task, arguments, fields, said):
    with pytest.raises(UserError, match=said):
        find(task, *arguments, **fields)


@pytest.fixture
def folder(tmp_path):
    """`folder(cat=3, dog=1)`: a folder with so many images to train on; the test has one each."""

    def make(**classes):
        for split, name, number in (
            *(("train", name, number) for name, number in classes.items()),
            *(("test", name, 1) for name in classes),
        ):
            place = tmp_path / "images" / split / name
            place.mkdir(parents=True)
            for i in range(number):
                Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(place / f"{i}.png")
        return [
            "--config.input.source=image_folder", f"--config.input.data_dir={tmp_path / 'images'}",
            "--config.input.num_examples=none", "--config.input.num_classes=none",
            "--config.input.batch_size=8",
        ]  # fmt: skip

    return make


def test_a_held_out_part_that_empties_a_class_is_refused(task, folder, tmp_path):
    arguments = folder(cat=40, dog=1)
    images = ImageFolder(str(tmp_path / "images"), "train", where="input")
    dog = images.stored_labels().labels.tolist().index(1)
    asked = task(RATES, *arguments, held_out=41 - dog)
    with pytest.raises(UserError, match=r"leaves 1 of 2 classes \(dog\) without an") as error:
        held_out.look(asked, None, epath.Path(tmp_path / "t"))
    if dog < 39:
        assert f"Give --held_out={40 - dog} or less" in str(error.value)
    else:
        assert "sorted by class" in str(error.value)
    # Published splits may do so; it is said.
    named = {"choose_split": f"train[:{dog}]", "held_out_split": f"train[{dog}:]"}
    parts, notes = held_out.look(task(RATES, *arguments, **named), None, epath.Path(tmp_path / "t"))
    assert parts.choose == f"train[:{dog}]"
    assert "(dog) without an example to train on" in notes[0]


def test_classes_that_are_not_chosen_by_are_said(task, folder, tmp_path):
    arguments = folder(cat=40, dog=2)
    asked = task(RATES, *arguments, held_out=2)
    _, notes = held_out.look(asked, None, epath.Path(tmp_path / "t"))
    assert "without one to choose by" in notes[0]


def test_everything_that_is_wrong_is_said_at_once(task, tmp_path):
    asked = task(
        RATES, "--config.input.preprocess=decode|resize(9)", checkpoint="nowhere", held_out=5000
    )
    with pytest.raises(UserError) as error:
        held_out.look(asked, "nowhere", epath.Path(tmp_path / "t"))
    for said in ("--held_out=5000", "patch", "nowhere"):
        assert said in str(error.value)
    assert not (tmp_path / "t").exists()


def test_every_value_of_every_list_is_looked_at(task, tmp_path):
    lists = ["--config.total.steps=50,5", "--config.optim.warmup_steps=6"]
    with pytest.raises(UserError, match=r"warmup.*5"):
        held_out.look(task(RATES, *lists), None, epath.Path(tmp_path / "t"))


def test_data_that_are_not_there_are_found_before_anything_else(task, tmp_path):
    source = ["--config.input.source=image_folder", "--config.input.data_dir=nowhere"]
    with pytest.raises(UserError, match="data_dir=nowhere is not a folder"):
        held_out.look(task(RATES, *source), None, epath.Path(tmp_path / "t"))


def test_any_mesh_is_checked_on_this_machine(task, tmp_path):
    asked = task(RATES, "--config.mesh.fsdp=8")
    parts, notes = held_out.look(asked, None, epath.Path(tmp_path / "t"))
    assert (parts.held_out, notes) == ("train[1293:1437]", [])


def test_no_image_of_the_test_is_read_nor_a_label(task, folder, tmp_path, monkeypatch):
    arguments = folder(cat=20, dog=20)
    read = []
    of_train = ImageFolder.read
    monkeypatch.setattr(
        ImageFolder, "read", lambda self, i: read.append(self.describe(0)) or of_train(self, i)
    )
    monkeypatch.setattr(
        ImageFolder,
        "stored_labels",
        lambda self, of=ImageFolder.stored_labels: read.append(self.describe(0)) or of(self),
    )
    held_out.look(task(RATES, *arguments), None, epath.Path(tmp_path / "t"))
    assert read
    assert not [path for path in read if "/test/" in path]


def test_all_fields_of_a_task_but_the_seeds_are_kept():
    assert {*FIXED, "grid", "seeds"} == set(tasks.TransferTask._fields)
