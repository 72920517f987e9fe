"""The golden file of messages is of tests that exist, and of nothing that varies."""

import ast
import collections
from pathlib import Path

import pytest

from tests import messages
from tests.messages import golden, refused, told, without_what_varies
from vit_jax.core.errors import UserError

ROOT = Path(__file__).parents[1]


def test_every_entry_is_of_a_test_that_exists():
    functions = {}
    for entry in golden():
        file, _, name = entry.partition("::")
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text()) if (ROOT / file).exists() else ast.parse("")
            functions[file] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        function = name.rpartition("::")[2].partition("[")[0]
        assert function in functions[file], f"{entry} is gone: take it out of {messages.GOLDEN}"


def test_what_varies_is_left_out(tmp_path):
    text = f"{tmp_path}/x of {ROOT}/configs at 127.0.0.1:4321 <object at 0x7f01aa00bb10>"
    name = tmp_path.name.rstrip("0123456789")
    expected = f"TMP/{name}/x of ROOT/configs at 127.0.0.1:PORT <object at 0x...>"
    assert without_what_varies(text) == expected


def run_as_a(monkeypatch):
    """From here on, the test that runs is `a`, of which the golden file has two messages."""
    monkeypatch.setattr(messages, "regenerating", False)
    monkeypatch.setattr(messages, "_met", collections.defaultdict(list))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a (call)")
    expected = {"a": ["input.x=1: wrong", "error: input.x=1: wrong\n"]}
    monkeypatch.setattr(messages, "golden", lambda: expected)


def test_a_message_of_other_wording_or_without_the_name_fails(monkeypatch):
    run_as_a(monkeypatch)
    with refused("input.x"):
        raise UserError("input.x=1: wrong")
    with pytest.raises(AssertionError, match=r"input\.y"), refused("input.y"):
        raise UserError("input.x=1: wrong")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "b (call)")
    with pytest.raises(AssertionError, match="--regenerate_goldens"), refused():
        raise UserError("input.x=1: else")


def test_a_printed_message_is_compared_as_a_raised_one_is(monkeypatch):
    run_as_a(monkeypatch)
    told("input.x=1: wrong", "input.x")
    told("12:00 loading\nerror: input.x=1: wrong\n", "input.x", 1)
    with pytest.raises(AssertionError, match=r"input\.y"):
        told("error: input.x=1: wrong", "input.y")
    with pytest.raises(AssertionError, match="--regenerate_goldens"):
        told("error: a third")
