import pytest

from vit_jax.core.errors import UserError
from vit_jax.run.problems import MISSING, Problems


def fail(message):
    raise UserError(message)


def test_a_part_that_needs_a_missing_one_is_left_out_silently():
    problems = Problems()
    good = problems.look("a", lambda: 1)
    bad = problems.look("b", lambda: fail("b is wrong"))
    assert problems.look("c", lambda a, b: a + b, good, bad) is MISSING
    assert problems.look("c", int, bad.some.attribute) is MISSING
    assert problems.look("c", int, after=[bad]) is MISSING
    assert problems.look("d", lambda a: a + 1, good) == 2
    assert [problem.what for problem in problems.found] == ["b"]


def test_a_single_problem_is_reported_unchanged():
    problems = Problems()
    problems.tell()
    problems.look("b", lambda: fail("b is wrong"))
    problems.look("c", lambda: fail("b is wrong"))  # another part trips over the same field
    with pytest.raises(UserError, match=r"^b is wrong$"):
        problems.tell()


def test_several_are_listed():
    problems = Problems()
    problems.look("b", lambda: fail("b is wrong:\nvery"))
    problems.look("c", lambda: fail("c is wrong"))
    with pytest.raises(UserError) as error:
        problems.tell()
    assert str(error.value) == "2 problems:\n  1. b is wrong:\n     very\n  2. c is wrong"


def test_a_bug_is_not_the_users_problem():
    with pytest.raises(ZeroDivisionError):
        Problems().look("a", lambda: 1 / 0)
