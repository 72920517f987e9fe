import pytest

from tests.messages import refused
from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError, nearest


def test_nearest_names_come_first_and_all_are_listed():
    assert (
        nearest("flip", ["decode", "flip_lr"]) == "Did you mean 'flip_lr'? Valid: decode, flip_lr."
    )


def test_nothing_near_lists_what_is_valid():
    assert nearest("xyzzy", ["b", "a"]) == "Valid: a, b."


def test_case_does_not_matter():
    assert nearest("VIT-G/14", ["ViT-g/14", "ViT-G/14", "x"]).startswith(
        "Did you mean 'ViT-G/14' or 'ViT-g/14'? "
    )


def test_words_of_others_stand_for_one_of_ours():
    assert nearest("AdamW", ["adam", "adamax"]).startswith("Did you mean 'adam'? (adam with")
    assert nearest("adamw", ["adamax"]) == "Did you mean 'adamax'? Valid: adamax."


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


def test_a_single_problem_is_reported_unchanged():
    errors = ErrorCollector()
    errors.raise_all()
    errors.attempt("b", lambda: fail("b is wrong"))
    errors.attempt("c", lambda: fail("b is wrong"))  # another part trips over the same field
    with refused():
        errors.raise_all()


def test_several_are_listed():
    errors = ErrorCollector()
    errors.attempt("b", lambda: fail("b is wrong:\nvery"))
    errors.attempt("c", lambda: fail("c is wrong"))
    with refused("1. b", "2. c"):
        errors.raise_all()


def test_a_bug_is_not_the_users_problem():
    with pytest.raises(ZeroDivisionError):
        ErrorCollector().attempt("a", lambda: 1 / 0)
