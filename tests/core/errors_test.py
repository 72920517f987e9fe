import json
import pickle
import tarfile
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError, nearest, reading, writing


def test_a_message_has_field_value_rule_and_cure():
    error = UserError("does not divide over 24 devices.", field="input.batch_size", value=4096)
    assert str(error) == "input.batch_size=4096 does not divide over 24 devices."
    other = UserError("is missing.", field="--output", cure="Give a file.")
    assert str(other) == "--output is missing. Give a file."
    assert str(UserError("All is wrong.")) == "All is wrong."
    # As from a worker process.
    copy = pickle.loads(pickle.dumps(error))
    assert (vars(copy), str(copy)) == (vars(error), str(error))


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda path: path.open(), "FileNotFoundError: No such file or directory"),
        (lambda path: path.parent.read_bytes(), "IsADirectoryError"),
        (lambda path: json.loads("{"), "JSONDecodeError"),
        (lambda path: json.loads("[" * 100_000), "RecursionError"),
        (lambda path: b"\xff".decode(), "UnicodeDecodeError"),
        (lambda path: zipfile.ZipFile(__file__), "BadZipFile: File is not a zip file"),
        (lambda path: tarfile.TarFile(__file__), "ReadError"),
        (lambda path: np.load(__file__), "allow_pickle"),
        (lambda path: Image.open(__file__), "UnidentifiedImageError"),
        (lambda path: pq.read_table(__file__), "ArrowInvalid"),
    ],
)
def test_who_cannot_read_says_why(tmp_path, read, kind):
    path = tmp_path / "a.npz"
    with pytest.raises(UserError) as raised, reading("init.weights", path):
        read(path)
    assert (raised.value.field, raised.value.value) == ("init.weights", path)
    assert str(raised.value).startswith(f"init.weights={path} cannot be read: ")
    assert kind in raised.value.rule and raised.value.__cause__ is not None


def test_errors_of_ours_and_bugs_pass_through():
    with pytest.raises(UserError, match=r"^mine$"), writing("--output"):
        raise UserError("mine")
    with pytest.raises(KeyError), writing("--output"):
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("word", "valid", "said"),
    [
        ("flip", ["decode", "flip_lr"], "Did you mean 'flip_lr'? Valid: decode, flip_lr."),
        ("xyzzy", ["b", "a"], "Valid: a, b."),
        ("VIT-G/14", ["ViT-g/14", "ViT-G/14", "x"], "Did you mean 'ViT-G/14' or 'ViT-g/14'? "),
        ("AdamW", ["adam", "adamax"], "Did you mean 'adam'? (adam with"),
        ("adamw", ["adamax"], "Did you mean 'adamax'? Valid: adamax."),
    ],
)
def test_nearest_names_come_first_and_all_are_listed(word, valid, said):
    assert nearest(word, valid).startswith(said)


def fail(message):
    raise UserError(message)


def test_a_part_that_needs_a_missing_one_is_left_out_silently():
    errors = ErrorCollector()
    good = errors.attempt("a", lambda: 1)
    bad = errors.attempt("b", lambda: fail("b is wrong"))
    assert errors.attempt("c", lambda a, b: a + b, good, bad) is NOT_MADE
    with refused("some", error=AssertionError):
        bad.some  # noqa: B018
    assert errors.attempt("c", int, after=[bad]) is NOT_MADE
    assert errors.attempt("d", lambda a: a + 1, good) == 2
    assert [each.what for each in errors.found] == ["b"]


def test_a_single_problem_is_reported_unchanged_and_several_are_listed():
    errors = ErrorCollector()
    errors.raise_all()
    errors.attempt("b", lambda: fail("b is wrong"))
    errors.attempt("c", lambda: fail("b is wrong"))  # another part trips over the same field
    with pytest.raises(UserError, match=r"^b is wrong$"):
        errors.raise_all()
    errors.attempt("d", lambda: fail("d is wrong:\nvery"))
    with refused("1. b", "2. d"):
        errors.raise_all()
