"""The golden file of messages is of tests that exist, and of nothing that varies."""

import ast
import collections
import functools
from pathlib import Path

import pytest

from tests import messages
from tests.messages import golden, refused, rule_of, told, without_what_varies
from vit_jax.core.errors import UserError, nearest_multiple
from vit_jax.core.schema import fields

ROOT = Path(__file__).parents[1]
NAME = "input.x"


def test_every_entry_is_of_a_rule_and_a_test_that_exist():
    for rule, (entry, _) in golden().items():
        gone = f"{rule}, by {entry}, is gone: {messages.GOLDEN}"
        file, _, name = entry.partition("::")
        assert name.rpartition("::")[2].partition("[")[0] in functions(file), gone
        file, qualified, number = rule.split(" ")
        raising = functions(file).get(qualified.rpartition(".")[2], ())
        assert any(count >= int(number) for count in raising), gone


@functools.cache
def functions(file):
    """{name: how many lines raise in each function of that name} of a file."""
    text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
    lines, counts = text.splitlines(), collections.defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = lines[node.lineno - 1 : node.end_lineno]
            counts[node.name].append(sum("raise " in x or "with reading(" in x for x in body))
    return counts


def test_what_varies_is_left_out(tmp_path):
    text = f"{tmp_path}/x of {ROOT}/configs at 127.0.0.1:4321 <object at 0x7f01aa00bb10>"
    name = tmp_path.name.rstrip("0123456789")
    expected = f"TMP/{name}/x of ROOT/configs at 127.0.0.1:PORT <object at 0x...>"
    assert without_what_varies(text) == expected


def out_of_bounds(value):
    fields.check_bounds(NAME, value, (1, 9))


def test_a_rule_is_the_place_that_raises():
    with pytest.raises(UserError) as raised:
        out_of_bounds(0)
    assert rule_of(raised.value) == "vit_jax/core/schema/fields.py check_bounds 1"
    with pytest.raises(ZeroDivisionError) as raised:
        nearest_multiple(1, 0)
    assert rule_of(raised.value) is None  # no frame but of errors.py


def test_a_message_of_other_wording_or_without_the_name_fails(monkeypatch):
    rule = "vit_jax/core/schema/fields.py check_bounds 1"
    monkeypatch.setattr(messages, "regenerating", False)
    monkeypatch.setattr(messages, "_met", {})
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a (call)")
    expected = f"{NAME}=0: give at least 1 and below 9."
    monkeypatch.setattr(messages, "golden", lambda: {rule: ["a", expected]})
    with refused(NAME):
        out_of_bounds(0)
    with refused(NAME):  # in one test the first of a rule is compared
        out_of_bounds(10)
    with pytest.raises(AssertionError, match=r"input\.y"), refused("input.y"):
        out_of_bounds(0)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "b (call)")
    with refused(NAME):  # the rule's wording is compared in test a
        out_of_bounds(10)
    messages._met.clear()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a (call)")
    with pytest.raises(AssertionError, match="--regenerate_goldens"), refused(NAME):
        out_of_bounds(10)


def test_a_printed_message_has_the_names():
    told("12:00 loading\nerror: input.x=1: wrong\n", NAME, 1)
    with pytest.raises(AssertionError, match=r"input\.y"):
        told("error: input.x=1: wrong", "input.y")
