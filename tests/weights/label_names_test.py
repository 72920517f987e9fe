"""Class names: sparse ones are kept and reported, nonsense is refused."""

import json

import pytest

from tests.messages import refused
from vit_jax import weights
from vit_jax.core import class_names
from vit_jax.weights import external
from vit_jax.weights.formats import timm


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
    ("labels", "message"),
    [
        ({"ant": 0, "bee": 1}, "not numbers of classes: ant, bee; it goes from number to name"),
        ({"0": "ant", "01": "bee", "-1": "cat"}, "not numbers of classes: 01, -1;"),
        ({"1": "a", "2": "b", "3": "c"}, "the classes 3, but the head has 3, 0 to 2"),
        ({str(i): "a" for i in range(20)}, "classes 3, 4, 5, 6, 7 and 12 more, but the head"),
        ({"0": ["ant"], "1": {}}, "names that are not words: 0: ['ant'], 1: {}"),
    ],
)
def test_nonsense_is_refused(labels, message):
    with refused(message):
        external.class_names("id2label", labels, 3)
    assert external.class_names("id2label", labels, 0) is None  # no head, no classes


def test_names_are_shown_in_one_line_of_text():
    """Those of others may have anything; a table of predictions holds no lone surrogate."""
    names, _ = weights.names_of_classes(("a\nb", "\x1b[31mred", "\ud800x", "café 猫"), 4)
    assert names == (r"a\nb", r"\x1b[31mred", r"\ud800x", "café 猫")


def test_timms_names():
    assert timm.class_names({"label_names": ["ant", "bee"]}, 2) == ("ant", "bee")
    assert timm.class_names({"label_names": {"1": "bee"}}, 2) == ("LABEL_0", "bee")
    assert timm.class_names({}, 2) is None


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (("ant", "bee", "cat"), True),
        (("LABEL_0", "bee", "LABEL_2"), True),
        (("LABEL_0", "bee", "LABEL_1"), False),
        (("ant", "cat", "bee"), False),
        (("ant", "bee"), False),
    ],
)
def test_classes_without_names_agree_with_any(others, expected):
    assert class_names.agree(("ant", "bee", "cat"), others) == expected


@pytest.mark.parametrize("to", ["huggingface", "timm"])
def test_classes_without_names_are_reported(tmp_path, toy, capsys, to):
    weights.save(toy(norm_epsilon=1e-6), tmp_path / "out", to)
    assert weights.load_with_info(tmp_path / "out").class_names == ("ant", "bee", "cat")
    assert capsys.readouterr().err == ""
    key = "id2label" if to == "huggingface" else "label_names"
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {key: {"1": "bee"}}))
    assert weights.load_with_info(tmp_path / "out").class_names == ("LABEL_0", "bee", "LABEL_2")
    assert capsys.readouterr().err == (
        f"Notice: {tmp_path}/out: 1 of 3 classes have names; without one are 0, 2, called LABEL_0 "
        "and so on.\n"
    )
    weights.load_with_info(tmp_path / "out", head="drop")
    assert capsys.readouterr().err == ""
