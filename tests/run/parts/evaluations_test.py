"""Agreement of an evaluation's classes with the model's."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.data import decoded
from vit_jax.run import build, decode

DIGITS = tuple("0123456789")


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (None, True),
        (DIGITS, True),
        (("LABEL_0", *DIGITS[1:]), True),  # a class without a name
        (DIGITS[::-1], False),
    ],
)
def test_classes_are_the_same_as_far_as_they_have_names(names, same):
    config = configs.load("configs/vit_digits.py", [])
    classes, mesh = build.ModelClasses(10, names), build.mesh(config.mesh)
    look = lambda: build.eval_data("test", config, classes, mesh, (8, 8))
    if same:
        assert look().source.class_names == DIGITS
    else:
        with pytest.raises(UserError, match="has other classes than the model"):
            look()


def test_names_that_were_guessed_contradict_none():
    config = configs.load("configs/vit_digits.py", [])
    classes = build.ModelClasses(10, DIGITS[::-1], assumed=True)
    data = build.eval_data("test", config, classes, build.mesh(config.mesh), (8, 8))
    assert data.columns is None


def test_a_source_without_a_folder_inherits_none(tmp_path):
    overrides = ("input.source=image_folder", f"input.data_dir={tmp_path}")
    digits = ("evals.test.source=digits",)
    classes = build.ModelClasses(10, None)
    config = configs.load("configs/vit_digits.py", [*overrides, *digits])
    mesh = build.mesh(config.mesh)
    assert build.eval_data("test", config, classes, mesh, (8, 8)).source.name == "digits"
    own = f"evals.test.data_dir={tmp_path}"
    config = configs.load("configs/vit_digits.py", [*overrides, *digits, own])
    with pytest.raises(UserError, match=r"evals\.test\.data_dir=.*'digits' reads no folder"):
        build.eval_data("test", config, classes, mesh, (8, 8))


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
    mesh = build.mesh(of_imagenet.mesh)
    names = ("n03032252 cinema, movie theater", "n02018795 bustard", "n01440764 tench")
    look = lambda *names: build.eval_data(
        "val", of_imagenet, build.ModelClasses(len(names), names), mesh, (8, 8)
    )
    assert look(*names).columns == (2, 0)
    assert look("n01440764", "n03032252 cinema").columns is None
    for unknown in (("n03032252", "n02018795"), ("cinema", "tench", "bustard")):
        with pytest.raises(UserError, match="has other classes than the model"):
            look(*unknown)


def frozen(config, **fields):
    return dataclasses.replace(
        config, evals={"f": dataclasses.replace(config.evals["val"], kind="frozen", **fields)}
    )


def test_features_of_any_classes_are_compared(of_imagenet):
    mesh, classes = build.mesh(of_imagenet.mesh), build.ModelClasses(7, None)
    look = lambda **fields: build.eval_data(
        "f", frozen(of_imagenet, **fields), classes, mesh, (8, 8)
    )
    data = look(shots=(1, 3), neighbours=(6,))
    assert [part.split.where for part in data.parts] == ["evals.f.train_split", "evals.f"]
    assert [part.source.num_examples for part in data.parts] == [6, 6]
    one_each = look(shots=(1,), neighbours=(2,), train_per_class=1)
    assert one_each.train.source.num_examples == 2
    with pytest.raises(UserError, match="2 of 2 classes have fewer than 4 examples"):
        look(shots=(4,), neighbours=())
    with pytest.raises(UserError, match=r"evals\.f\.neighbours=7: .* has 6 examples"):
        look(shots=(1,), neighbours=(7,))
    with pytest.raises(UserError, match=r"evals\.f.*split.*'trian'"):
        look(train_split="trian", shots=(1,), neighbours=(1,))


def test_both_splits_of_features_are_decoded_apart(of_imagenet, tmp_path):
    config = frozen(of_imagenet, shots=(1,), neighbours=(), split="val[:2]")
    classes = build.ModelClasses(2, None)
    data = build.eval_data("f", config, classes, build.mesh(config.mesh), (8, 8))
    folders = {part.split.where: tmp_path / part.split.where for part in data.parts}
    written = configs.to_dict(config)
    job = {"config": written, "num_classes": 2, "folders": {w: str(f) for w, f in folders.items()}}
    decode.decode(job)
    assert [decoded.load(folder).num_examples for folder in folders.values()] == [6, 2]
