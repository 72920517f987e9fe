"""Class names: sparse ones are kept and reported, nonsense is refused."""

import pytest

from tests.messages import refused
from tests.weights.conftest import edit
from vit_jax import weights
from vit_jax.weights import external


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, None),
        ({"0": "LABEL_0", "1": "LABEL_1"}, None),  # transformers' placeholder for no names
        ({"1": "bee", "0": "ant", "2": "cat"}, ("ant", "bee", "cat")),
        ({"0": "ant", "2": "cat"}, ("ant", "LABEL_1", "cat")),
        ({"0": "ant", "1": None, "2": ""}, ("ant", "LABEL_1", "LABEL_2")),
        ({"0": 7, "1": 8, "2": 9}, ("7", "8", "9")),
    ],
)
def test_names_by_number(labels, expected):
    assert external.class_names("id2label", labels, 3) == expected


@pytest.mark.parametrize(
    ("labels", "odd"),
    [
        ({"ant": 0, "bee": 1}, "'ant': 0, 'bee': 1"),
        ({"0": "ant", "01": "bee", "-1": "cat"}, "'01': bee, '-1': cat"),
        ({"1": "a", "2": "b", "3": "c"}, "'3': c"),
        ({str(i): "a" for i in range(20)}, "and 12 more"),
        ({"0": ["ant"], "1": {}, "2": True}, "'0': ['ant'], '1': {}, '2': True"),
    ],
)
def test_nonsense_is_refused(labels, odd):
    with refused("id2label", odd):
        external.class_names("id2label", labels, 3)
    assert external.class_names("id2label", labels, 0) is None  # no head, no classes


def test_names_are_shown_in_one_line_of_text():
    """Those of others may have anything; a table of predictions holds no lone surrogate."""
    names, _ = weights.names_of_classes(("a\nb", "\x1b[31mred", "\ud800x", "café 猫"), 4)
    assert names == (r"a\nb", r"\x1b[31mred", r"\ud800x", "café 猫")


@pytest.mark.parametrize("to", ["huggingface", "timm"])
def test_classes_without_names_have_a_placeholder(tmp_path, toy, to):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "out", to)
    assert weights.load_with_info(tmp_path / "out").class_names == ("ant", "bee", "cat")
    key = "id2label" if to == "huggingface" else "label_names"
    edit(tmp_path / "out", {key: {"1": "bee"}})
    assert weights.load_with_info(tmp_path / "out").class_names == ("LABEL_0", "bee", "LABEL_2")
