"""Agreement of an evaluation's classes with the model's."""

import dataclasses
import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core import synsets
from vit_jax.data.source import DerivedSource
from vit_jax.evals.frozen import FrozenConfig
from vit_jax.evals.kind import EvalConfig
from vit_jax.run.parts import eval_data, evaluations, inputs
from vit_jax.run.parts.durations import make_durations
from vit_jax.run.parts.eval_data import ModelClasses

DIGITS = tuple("0123456789")


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (None, True),
        (DIGITS, True),
        (("LABEL_0", *DIGITS[1:]), True),  # a class without a name
        (("ten", *DIGITS[1:]), False),
    ],
)
def test_classes_are_the_same_as_far_as_they_have_names(names, same):
    config = configs.load("configs/vit_digits.py", [])
    classes, mesh = ModelClasses(10, names), inputs.mesh(config.mesh)
    look = lambda: eval_data.eval_data("test", config, classes, mesh, (8, 8))
    if same:
        assert look().source.class_names == DIGITS
    else:
        with refused():
            look()


def test_data_may_have_some_of_the_classes_in_any_order():
    config = configs.load("configs/vit_digits.py", [])
    mesh, names = inputs.mesh(config.mesh), ("ten", *DIGITS[::-1])
    data = eval_data.eval_data("test", config, ModelClasses(11, names), mesh, (8, 8))
    assert data.source.class_names == names and data.columns is None
    labels, plain = (s.stored_labels().labels for s in (data.source, data.source.source))
    np.testing.assert_array_equal(labels, 10 - plain)


def test_names_that_were_guessed_contradict_none():
    config = configs.load("configs/vit_digits.py", [])
    classes = ModelClasses(10, DIGITS[::-1], assumed=True)
    data = eval_data.eval_data("test", config, classes, inputs.mesh(config.mesh), (8, 8))
    assert data.columns is None


def test_a_source_without_a_folder_inherits_none(tmp_path):
    overrides = ("input.source=image_folder", f"input.data_dir={tmp_path}")
    digits = ("evals.test.source=digits",)
    classes = ModelClasses(10, None)
    config = configs.load("configs/vit_digits.py", [*overrides, *digits])
    mesh = inputs.mesh(config.mesh)
    assert eval_data.eval_data("test", config, classes, mesh, (8, 8)).source.name == "digits"
    own = f"evals.test.data_dir={tmp_path}"
    config = configs.load("configs/vit_digits.py", [*overrides, *digits, own])
    with refused("evals.test.data_dir", "'digits'"):
        eval_data.eval_data("test", config, classes, mesh, (8, 8))


class FirstLabelled(DerivedSource):
    def read(self, indices):
        examples = self.source.read(indices)
        return [
            e if i == 0 else e._replace(labels=()) for i, e in zip(indices, examples, strict=True)
        ]


def test_a_picture_without_a_label_is_of_no_class():
    config = configs.load("configs/vit_digits.py", [])
    mesh, classes = inputs.mesh(config.mesh), ModelClasses(10, DIGITS)
    data = eval_data.eval_data("test", config, classes, mesh, (8, 8))
    source = FirstLabelled(data.source)
    data = data._replace(split=data.split._replace(source=source))
    as_they_are = SimpleNamespace(images=lambda batch: batch["image"])
    shown = evaluations._shown("test", config, data, as_they_are, 2)
    first = source.read(np.array([0]))[0].labels[0]
    assert shown.labels == [first, None]
    assert shown.captions == [DIGITS[first], "without a label"]
    data = data._replace(columns=tuple(range(10, 20)))  # where the model has these classes
    assert evaluations._shown("test", config, data, as_they_are, 1).labels == [10 + first]


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
    mesh = inputs.mesh(of_imagenet.mesh)
    names = ("n03032252 cinema, movie theater", "n02018795 bustard", "n01440764 tench")
    look = lambda *names: eval_data.eval_data(
        "val", of_imagenet, ModelClasses(len(names), names), mesh, (8, 8)
    )
    assert look(*names).columns == (2, 0)
    assert look("n01440764", "n03032252 cinema").columns is None
    for unknown in (("n03032252", "n02018795"), ("cinema", "tench", "bustard")):
        with refused():
            look(*unknown)


def frozen(config, **fields):
    shared = dataclasses.asdict(config.evals["val"]) | {"kind": "frozen"}
    known = {f.name for f in dataclasses.fields(FrozenConfig)}
    values = {name: value for name, value in shared.items() if name in known}
    return dataclasses.replace(config, evals={"f": FrozenConfig(**values | fields)})


def test_any_kind_may_learn_from_a_split(of_imagenet):
    @dataclasses.dataclass(frozen=True)
    class Learner(EvalConfig):
        train_split: str = "train"

    shared = dataclasses.asdict(of_imagenet.evals["val"]) | {"kind": "learner"}
    known = {f.name for f in dataclasses.fields(Learner)}
    c = Learner(**{name: value for name, value in shared.items() if name in known})
    config = dataclasses.replace(of_imagenet, evals={"f": c})
    mesh = inputs.mesh(config.mesh)
    data = eval_data.eval_data("f", config, ModelClasses(7, None), mesh, (8, 8))
    assert [part.split.where for part in data.parts] == ["evals.f.train_split", "evals.f"]


def test_features_of_any_classes_are_compared(of_imagenet):
    mesh, classes = inputs.mesh(of_imagenet.mesh), ModelClasses(7, None)
    look = lambda **fields: eval_data.eval_data(
        "f", frozen(of_imagenet, **fields), classes, mesh, (8, 8)
    )
    data = look(shots=(1, 3), neighbours=(6,))
    assert [part.split.where for part in data.parts] == ["evals.f.train_split", "evals.f"]
    assert [part.source.num_examples for part in data.parts] == [6, 6]
    one_each = look(shots=(1,), neighbours=(2,), train_per_class=1)
    assert one_each.train.source.num_examples == 2
    with refused("evals.f.shots=(4,)", "'train'"):
        look(shots=(4,), neighbours=())
    with refused("evals.f.neighbours=7"):
        look(shots=(1,), neighbours=(7,))
    with refused("evals.f.train_split", "'trian'"):
        look(train_split="trian", shots=(1,), neighbours=(1,))
    for shared in (
        {"train_split": "val[2:]", "split": "val[:3]"},
        {"train_split": "train+val", "split": "val"},
        {"train_split": "val", "split": "val", "train_per_class": 1},
    ):
        with refused():
            look(shots=(1,), neighbours=(1,), **shared)
    look(shots=(), neighbours=(1,), train_split="val[2:]", split="val[:2]")


def test_both_splits_of_features_may_be_on_the_devices(of_imagenet, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = frozen(of_imagenet, shots=(1,), neighbours=(), split="val[:2]")
    config = dataclasses.replace(config, input=dataclasses.replace(config.input, cache="device"))
    classes = ModelClasses(2, None)
    data = eval_data.eval_data("f", config, classes, inputs.mesh(config.mesh), (8, 8))
    good = []
    for part in data.parts:
        feed, num_batches = part.open_feed()
        with feed:
            good.append(sum(int(next(feed)["weight"].sum()) for _ in range(num_batches)))
    assert good == [6, 2]
    assert len(list((tmp_path / "cache" / "vit_jax" / "decoded").iterdir())) == 2


def test_features_of_other_images_or_another_preparation_are_not_taken(of_imagenet, tmp_path):
    graph = nnx.graphdef(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    classes = ModelClasses(2, None)

    def key(*overrides):
        config = frozen(of_imagenet, shots=(1,), neighbours=())
        config = configs.resolve(configs.to_dict(config), overrides)
        data = eval_data.eval_data("f", config, classes, inputs.mesh(config.mesh), (8, 8))
        return evaluations._cache_key(config, data, graph)

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


def test_files_are_not_looked_at_where_no_features_are_kept(of_imagenet, monkeypatch):
    monkeypatch.setattr(
        evaluations, "_cache_key", lambda *_, **__: pytest.fail("not for accuracies")
    )
    mesh = inputs.mesh(of_imagenet.mesh)
    data = eval_data.eval_data("val", of_imagenet, ModelClasses(2, None), mesh, (8, 8))
    graph = nnx.graphdef(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    made = evaluations.evals(
        of_imagenet, {"val": data}, graph, mesh, SimpleNamespace(), total_steps=1,
        keep_features=True,
    )  # fmt: skip
    assert list(made.by_name) == ["val"]


def test_variants_of_imagenet_are_scored_by_their_own_labels(tmp_path):
    for name in ("alarm_clock", "air_freshener"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "data" / name / "0.png")
    shared = {"source": "image_folder", "data_dir": str(tmp_path / "data"), "split": "all"}

    def look(names, **fields):
        evaluation = {**shared, "preprocess": "decode|crop_border(2)|resize(4)", **fields}
        config = configs.resolve({"evals": {"o": evaluation}, "input": {"batch_size": 2}})
        evaluations.check_evals(config)
        classes = ModelClasses(len(names), names)
        return eval_data.eval_data("o", config, classes, inputs.mesh(config.mesh), (4, 4))

    thousand = tuple(synsets.names_1k().values())
    data = look(thousand, classes="objectnet")
    assert (data.source.num_examples, data.columns) == (1, None)
    (example,) = data.source.read(np.array([0]))
    assert sorted(example.labels) == [409, 530]
    with refused("evals.o.calibration"):
        look(thousand, classes="objectnet", calibration=True)
    for wrong in ({"kind": "frozen"}, {"labels": "real.json"}):
        with refused("evals.o.classes"):
            look(thousand, classes="objectnet", **wrong)
    with refused("evals.o.labels", "real.json"):
        look(thousand, labels=str(tmp_path / "real.json"))


@pytest.mark.parametrize(
    ("every_steps", "advice"),
    [("25", None), ("50", None), ("150", None), ("none", None), ("30", "50"), ("170", "150")],
)
def test_steps_that_are_to_be_kept_are_saved(tiny_run, every_steps, advice):
    eval_ = (f"evals.test.every_steps={every_steps}", "evals.test.preprocess=decode|resize(8)")
    override = f"checkpoint.keep_every_steps={every_steps}"
    for field, check, overrides in (
        ("evals.test", evaluations.check_evals, ["checkpoint.best_metric=test/loss", *eval_]),
        ("checkpoint.keep", lambda config: make_durations(config, num_examples=64), [override]),
    ):
        config = tiny_run("checkpoint.every_steps=50", *overrides)
        if advice is None:
            check(config)
        else:
            with refused(field, f"every_steps={every_steps}", f"such as {advice}."):
                check(config)
