"""Agreement of an evaluation's classes with the model's."""

import pytest

from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.run import build

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
