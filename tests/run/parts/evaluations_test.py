"""Agreement of an evaluation's classes with the model's."""

import dataclasses
import os

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core import synsets
from vit_jax.evals.frozen import FrozenConfig
from vit_jax.run.parts import eval_data, evaluations, inputs
from vit_jax.run.parts.eval_data import ModelClasses

DIGITS = tuple("0123456789")


def look(name, config, classes, side=8):
    return eval_data.eval_data(name, config, classes, inputs.mesh(config.mesh), (side, side))


def of_digits(number, names, *overrides, **classes):
    config = configs.load("configs/vit_digits.py", overrides)
    return look("test", config, ModelClasses(number, names, **classes))


@pytest.mark.parametrize("names", [None, DIGITS, ("LABEL_0", *DIGITS[1:])])
def test_classes_are_the_same_as_far_as_they_have_names(names):
    assert of_digits(10, names).source.class_names == DIGITS


def test_other_classes_are_refused():
    with refused("evals.test"):
        of_digits(10, ("ten", *DIGITS[1:]))


def test_data_may_have_some_of_the_classes_in_any_order():
    names = ("ten", *DIGITS[::-1])
    data = of_digits(11, names)
    assert data.source.class_names == names and data.columns is None
    labels, plain = (s.stored_labels().labels for s in (data.source, data.source.source))
    np.testing.assert_array_equal(labels, 10 - plain)


def test_a_source_without_a_folder_inherits_none(tmp_path):
    overrides = (
        "input.source=image_folder", f"input.data_dir={tmp_path}", "evals.test.source=digits"
    )  # fmt: skip
    assert of_digits(10, None, *overrides).source.name == "digits"
    with refused("evals.test.data_dir", "'digits'"):
        of_digits(10, None, *overrides, f"evals.test.data_dir={tmp_path}")


@pytest.fixture
def of_imagenet(tmp_path):
    """A config that evaluates a folder of two of ImageNet's classes."""
    for number, synset in enumerate(("n01440764", "n03032252 cinema")):
        for i in range(3):
            image = tmp_path / "data" / "val" / synset / f"{i}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 100 * number + i, np.uint8)).save(image)
    (tmp_path / "data" / "train").symlink_to(tmp_path / "data" / "val")
    return configs.resolve(
        {
            "input": {"source": "image_folder", "data_dir": str(tmp_path / "data")},
            "evals": {"val": {"split": "val", "preprocess": "decode|resize(8)", "batch_size": 2}},
            "total": {"steps": 1},
        }
    )


def test_classes_of_imagenet_are_found_among_the_models(of_imagenet):
    names = ("n03032252 cinema, movie theater", "n02018795 bustard", "n01440764 tench")
    of_names = lambda *names: look("val", of_imagenet, ModelClasses(len(names), names))
    assert of_names(*names).columns == (2, 0)
    assert of_names("n01440764", "n03032252 cinema").columns is None
    for unknown in (("n03032252", "n02018795"), ("cinema", "tench", "bustard")):
        with refused("evals.val"):
            of_names(*unknown)


def frozen(config, **fields):
    shared = dataclasses.asdict(config.evals["val"]) | {"kind": "frozen"}
    known = {f.name for f in dataclasses.fields(FrozenConfig)}
    values = {name: value for name, value in shared.items() if name in known}
    return dataclasses.replace(config, evals={"f": FrozenConfig(**values | fields)})


def test_features_of_any_classes_are_compared(of_imagenet):
    of_fields = lambda **fields: look("f", frozen(of_imagenet, **fields), ModelClasses(7, None))
    data = of_fields(shots=(1, 3), neighbours=(6,))
    assert [part.split.where for part in data.parts] == ["evals.f.train_split", "evals.f"]
    assert [part.source.num_examples for part in data.parts] == [6, 6]
    one_each = of_fields(shots=(1,), neighbours=(2,), train_per_class=1)
    assert one_each.train.source.num_examples == 2
    with refused("evals.f.shots=4"):
        of_fields(shots=(4,), neighbours=())
    with refused("evals.f.neighbours=7"):
        of_fields(shots=(1,), neighbours=(7,))
    with refused("evals.f.train_split", "'trian'"):
        of_fields(train_split="trian", shots=(1,), neighbours=(1,))
    for shared in (
        {"train_split": "val[2:]", "split": "val[:3]"},
        {"train_split": "train+val", "split": "val"},
        {"train_split": "val", "split": "val", "train_per_class": 1},
    ):
        with refused("evals.f"):
            of_fields(shots=(1,), neighbours=(1,), **shared)
    of_fields(shots=(), neighbours=(1,), train_split="val[2:]", split="val[:2]")


def test_both_splits_of_features_may_be_on_the_devices(of_imagenet, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = frozen(of_imagenet, shots=(1,), neighbours=(), split="val[:2]")
    config = dataclasses.replace(config, input=dataclasses.replace(config.input, cache="device"))
    data = look("f", config, ModelClasses(2, None))
    good = []
    for part in data.parts:
        feed, num_batches = part.open_feed()
        with feed:
            good.append(sum(int(next(feed)["weight"].sum()) for _ in range(num_batches)))
    assert good == [6, 2]
    assert len(list((tmp_path / "cache" / "vit_jax" / "decoded").iterdir())) == 2


def test_features_of_other_images_or_another_preparation_are_not_taken(of_imagenet, tmp_path):
    graph = nnx.graphdef(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))

    def key(*overrides):
        config = frozen(of_imagenet, shots=(1,), neighbours=())
        config = configs.resolve(configs.to_dict(config), overrides)
        data = look("f", config, ModelClasses(2, None))
        return evaluations._cache_key(config.input, data, graph)

    first = key()
    assert first == key("evals.f.shots=1,2", "evals.f.batch_size=3")
    assert first != key("input.mean=0.4,0.5,0.5") != key("evals.f.split=val[:5]") != first
    assert first != key("evals.f.preprocess=decode|resize(8, method='bicubic')")
    with jax.default_matmul_precision("highest"):
        assert first != key()
    image = tmp_path / "data" / "val" / "n01440764" / "0.png"
    Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(image)
    os.utime(image, (1, 1))
    assert first != key()


def test_variants_of_imagenet_are_scored_by_their_own_labels(tmp_path):
    for name in ("alarm_clock", "air_freshener"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "data" / name / "0.png")
    shared = {"source": "image_folder", "data_dir": str(tmp_path / "data"), "split": "all"}

    def of_names(names, **fields):
        evaluation = {**shared, "preprocess": "decode|crop_border(2)|resize(4)", **fields}
        config = configs.resolve({"evals": {"o": evaluation}, "input": {"batch_size": 2}})
        evaluations.check_evals(config)
        return look("o", config, ModelClasses(len(names), names), side=4)

    thousand = tuple(synsets.names_1k().values())
    data = of_names(thousand, classes="objectnet")
    assert (data.source.num_examples, data.columns) == (1, None)
    (example,) = data.source.read(np.array([0]))
    assert sorted(example.labels) == [409, 530]
    with refused("evals.o.calibration"):
        of_names(thousand, classes="objectnet", calibration=True)
    for wrong in ({"kind": "frozen"}, {"labels": "real.json"}):
        with refused("evals.o.classes"):
            of_names(thousand, classes="objectnet", **wrong)
    with refused("evals.o.labels", "real.json"):
        of_names(thousand, labels=str(tmp_path / "real.json"))


@pytest.mark.parametrize(
    ("every_steps", "meets"),
    [("25", True), ("50", True), ("150", True), ("none", True), ("30", False), ("170", False)],
)
def test_steps_that_are_to_be_kept_are_saved(tiny_run, every_steps, meets):
    eval_ = (f"evals.test.every_steps={every_steps}", "evals.test.preprocess=decode|resize(8)")
    override = f"checkpoint.keep_every_steps={every_steps}"
    for field, check, overrides in (
        ("evals.test", evaluations.check_evals, ["checkpoint.best_metric=test/loss", *eval_]),
        ("checkpoint.keep", configs.check_constraints, [override]),
    ):
        config = tiny_run("checkpoint.every_steps=50", *overrides)
        if meets:
            check(config)
        else:
            with refused(field, f"every_steps={every_steps}"):
                check(config)
