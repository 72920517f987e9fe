"""The sweeps of a transfer, and what is checked before: splits, classes, weights, folders."""

import dataclasses

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tests.messages import refused
from tests.tools.lab.conftest import DIGITS, REPOSITORY
from tests.tools.lab.transfer.conftest import SPLITS
from vit_jax import config as configs
from vit_jax import models
from vit_jax.data.source import Request
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.run import adapt
from vit_jax.tools.lab.transfer import task as tasks
from vit_jax.tools.lab.transfer.task import Splits

FINETUNE = str(REPOSITORY / "configs" / "finetune.py")
RATES = "--config.optim.lr=1e-3,3e-3"


def configs_of(grid):
    return [grid.load(values) for values in grid.points()]


@pytest.mark.parametrize(
    ("config", "test"),
    [(DIGITS, "test"), (FINETUNE, "val"), (f"{FINETUNE}:cifar10,size=32", "test"),
     (f"{FINETUNE}:imagenet", "validation"), (f"{FINETUNE}:pets,probe", "test")],
)  # fmt: skip
def test_no_training_of_the_choice_has_the_test(task, config, test):
    asked = task(RATES, "--config.input.data_dir=d", config=config, checkpoint="w")
    tasks.check(asked)
    for point in configs_of(tasks.choose_grid(asked, SPLITS, "w")):
        assert list(point.evals) == ["held_out"]
        assert (point.input.split, point.evals["held_out"].split) == SPLITS[1:]
        assert point.evals["held_out"].preprocess == asked.grid.load().evals[test].preprocess
        assert point.input.num_examples is None
        assert point.init.weights == "w"
        assert f"'{test}'" not in str(dataclasses.asdict(point))


def test_the_result_is_scored_once_at_the_end(task):
    asked = task(RATES, "--config.evals.test.batch_size=7", seeds=2)
    first, second = configs_of(tasks.final_grid(asked, SPLITS, None, {"optim.lr": "3e-3"}))
    assert (first.optim.lr, first.seed, second.seed) == (3e-3, 0, 1)
    assert list(first.evals) == ["test"]
    assert first.evals["test"].every_steps is None
    assert (first.evals["test"].split, first.evals["test"].batch_size) == ("test", 7)
    assert first.input == configs.load(DIGITS).input  # all of the training data


def test_other_evaluations_and_a_best_metric_of_the_test_are_left_out(task):
    asked = task(
        RATES,
        "--config.evals.held_out.kind=frozen",
        "--config.evals.held_out.preprocess=decode",
        "--config.checkpoint.best_metric=test/accuracy",
        "--config.early_stopping.metric=test/accuracy",
        evaluation="test",
    )
    tasks.check(asked)
    (choose, *_), (final, *_) = (
        configs_of(tasks.choose_grid(asked, SPLITS, None)),
        configs_of(tasks.final_grid(asked, SPLITS, None, {"optim.lr": "1"})),
    )
    assert choose.evals["held_out"].kind == "classification"
    assert choose.evals["held_out"].preprocess == "decode|resize(8)"
    assert (list(choose.evals), list(final.evals)) == (["held_out"], ["test"])
    assert choose.checkpoint.best_metric is final.checkpoint.best_metric is None
    assert choose.early_stopping.metric is final.early_stopping.metric is None


def test_the_held_out_part_is_of_the_training_data(task):
    asked = task(
        RATES,
        *("--config.evals.test.source=image_folder", "--config.evals.test.data_dir=elsewhere"),
        *("--config.evals.test.labels=real.json", "--config.evals.test.classes=imagenet_v2"),
    )
    held_out = configs_of(tasks.choose_grid(asked, SPLITS, None))[0].evals["held_out"]
    of_test = (held_out.source, held_out.data_dir, held_out.labels, held_out.classes)
    assert of_test == (None,) * 4


def test_from_scratch_nothing_of_init_is_left(task):
    asked = task(RATES, "--config.model.name=ViT-Ti/16", config=FINETUNE)
    tasks.check(asked)
    assert configs_of(tasks.choose_grid(asked, SPLITS, "w"))[0].init.head == "reset"
    init = configs_of(tasks.choose_grid(asked, SPLITS, None))[0].init
    assert init == configs.InitConfig()


@pytest.mark.parametrize(
    ("arguments", "fields", "name"),
    [
        (["--config.seed=0,1"], {}, "--choose_seeds"),
        (["--config.evals.test.batch_size=1,2"], {}, "evals.test.batch_size"),
        (["--config.init.weights=a"], {}, "--checkpoint"),
        (["--config.optim.lrr=1,2"], {}, "optim.lrr"),
        (["--config.input.mixture.a.weight=1"], {}, "input.mixture"),
        (["--config.input.pseudo_labels=a.npz"], {}, "input.pseudo_labels"),
        (["--config.evals.test=none"], {}, "--metric=accuracy"),
        ([], {"metric": "accurcy"}, "--metric=accurcy"),
        ([], {"evaluation": "tset"}, "--evaluation=tset"),
        ([], {"ema": True}, "optim.ema_decay"),
        ([], {"held_out": 0}, "--held_out=0 "),
        ([], {"held_out": 1.0}, "--held_out=1 "),
        ([], {"held_out_split": "train[800:]"}, "--choose_split"),
        ([], {"held_out": 0.2, "choose_split": "a", "held_out_split": "b"}, "--held_out "),
        ([], {"config": FINETUNE}, "--config.model.name"),
        ([], {"config": f"{DIGITS},{FINETUNE}"}, "config has a list"),
    ],
)
def test_a_task_that_is_wrong_in_itself(task, arguments, fields, name):
    with refused(name):
        tasks.check(task(*arguments, **fields))


def find(task, *arguments, **fields):
    asked = task(RATES, *arguments, **fields)
    return tasks.find_splits(asked)


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


def test_named_splits_and_none_where_there_is_nothing_to_choose(task):
    named = {"choose_split": "train[:800]", "held_out_split": "train[800:1000]"}
    assert find(task, **named) == Splits("train", "train[:800]", "train[800:1000]")
    assert tasks.find_splits(task()) == Splits("train", "", "")
    with refused("'tset'"):
        tasks.find_splits(task("--config.evals.test.split=tset"))


@pytest.mark.parametrize(
    ("arguments", "fields", "names"),
    [
        ([], {"held_out": 0.0001}, ["--held_out=0.0001"]),
        (["--config.input.split=tran"], {}, ["'tran'", "'train'"]),
        ([], {"choose_split": "train[:9]", "held_out_split": "val"}, ["'val'", "test"]),
        (
            [],
            {"choose_split": "train[:9]", "held_out_split": "train[8:20]"},
            ["--held_out_split=train[8:20]", "--choose_split=train[:9]"],
        ),
        ([], {"choose_split": "train", "held_out_split": "test"}, ["--held_out_split=test"]),
        (["--config.evals.test.split=train[90%:]"], {}, ["train[90%:]", "input.split=train"]),
        (["--config.input.source=synthetic"], {}, ["input.source=synthetic"]),
    ],
)
def test_parts_that_cannot_be(task, arguments, fields, names):
    with refused(*names):
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
    images = ImageFolder(Request("train", str(tmp_path / "images")))
    dog = images.stored_labels().labels.tolist().index(1)
    asked = task(RATES, *arguments, held_out=41 - dog)
    with refused("--choose_split", "(dog)"):
        tasks.check_all(asked, None, epath.Path(tmp_path / "t"))
    # Published splits may do so; it is said.
    named = {"choose_split": f"train[:{dog}]", "held_out_split": f"train[{dog}:]"}
    parts, notes = tasks.check_all(
        task(RATES, *arguments, **named), None, epath.Path(tmp_path / "t")
    )
    assert parts.choose == f"train[:{dog}]"
    assert "(dog) without an example to train on" in notes[0]


@pytest.mark.parametrize("spelt", ["images/", "./images", "link", "{}/images", "~/images"])
def test_a_test_of_training_examples_is_refused_however_its_folder_is_spelt(
    task, folder, tmp_path, monkeypatch, spelt
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to("images")
    arguments = [*folder(cat=9, dog=9), "--config.input.data_dir=images"]
    evaluated = f"--config.evals.test.data_dir={spelt.format(tmp_path)}"
    with refused("train[4:]", "input.split=train"):
        find(task, *arguments, evaluated, "--config.evals.test.split=train[4:]")


def test_everything_that_is_wrong_is_said_at_once(task, tmp_path):
    asked = task(
        RATES, "--config.input.preprocess=decode|resize(9)", checkpoint="nowhere", held_out=5000
    )
    with refused("--held_out=5000", "patch", "nowhere"):
        tasks.check_all(asked, "nowhere", epath.Path(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["total.steps=50,5", "optim.warmup_steps=6"], "optim.warmup_"),  # of the second value
        (["input.source=image_folder", "input.data_dir=nowhere"], "data_dir"),
    ],
)
def test_every_value_and_the_data_are_looked_at(task, tmp_path, arguments, name):
    with refused(name):
        asked = task(RATES, *(f"--config.{each}" for each in arguments))
        tasks.check_all(asked, None, epath.Path(tmp_path / "t"))


def test_no_image_of_the_test_is_read_nor_a_label(task, folder, tmp_path, monkeypatch):
    read = []
    for name in ("read", "stored_labels"):
        of_images = getattr(ImageFolder, name)
        noted = lambda self, *i, of=of_images: read.append(self.describe(0)) or of(self, *i)
        monkeypatch.setattr(ImageFolder, name, noted)
    arguments = folder(cat=20, dog=20)
    tasks.check_all(task(RATES, *arguments), None, epath.Path(tmp_path / "t"))
    assert read and not [path for path in read if "/test/" in path]


@pytest.mark.parametrize(
    ("num_examples", "arguments", "derived"),
    [
        (999, [], {"input.batch_size": "64", "total.epochs": "20.0"}),  # of 899: 32
        (2100, [], {"input.batch_size": "128", "total.epochs": "10.0"}),  # of 1,890: 20
        (999, ["total.steps=100"], {"input.batch_size": "64"}),
        (999, ["total.examples=3000,6000"], {"input.batch_size": "64"}),
        (999, ["input.batch_size=16,32", "total.epochs=3"], {"total.epochs": "3.0"}),
    ],
)
def test_what_a_config_derives_from_all_of_the_data_holds_while_choosing(
    task, monkeypatch, num_examples, arguments, derived
):
    about = models.Preprocess((32, 32), resize=36, interpolation="bicubic", crop=(32, 32))
    monkeypatch.setattr(adapt.Facts, "preprocess", about)
    count = lambda facts: num_examples * (0.9 if "[" in facts.config.input.split else 1)
    monkeypatch.setattr(adapt.Facts, "num_examples", property(count))
    arguments = [f"--config.{each}" for each in ("input.data_dir=d", *arguments)]
    asked = task(RATES, *arguments, config=FINETUNE, checkpoint="w")
    asked = dataclasses.replace(asked, grid=asked.grid._replace(launched=True))
    assert asked.derived_fields() == derived
    asked = asked.with_fields(derived)
    for point in tasks.choose_grid(asked, SPLITS, "w").points():
        choose = tasks.choose_grid(asked, SPLITS, "w").load(point)
        final = tasks.final_grid(asked, SPLITS, "w", point).load()
        for field in ("batch_size", "mean"):
            assert getattr(choose.input, field) == getattr(final.input, field)
        assert (choose.optim.lr, choose.total) == (final.optim.lr, final.total)
