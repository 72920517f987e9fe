"""The golden file of messages is of tests that exist, and of nothing that varies."""

import ast
import collections
from pathlib import Path

import pytest

from tests import messages
from tests.messages import golden, refused, without_what_varies
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


def test_a_message_of_other_wording_or_without_the_name_is_told(monkeypatch):
    monkeypatch.setattr(messages, "regenerating", False)
    monkeypatch.setattr(messages, "_met", collections.defaultdict(list))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a (call)")
    monkeypatch.setattr(messages, "golden", lambda: {"a": ["input.x=1: wrong"]})
    with refused("input.x"):
        raise UserError("input.x=1: wrong")
    with pytest.raises(AssertionError, match="is not in the message"), refused("input.y"):
        raise UserError("input.x=1: wrong")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "b (call)")
    with pytest.raises(AssertionError, match="--regenerate_goldens"), refused():
        raise UserError("input.x=1: else")
