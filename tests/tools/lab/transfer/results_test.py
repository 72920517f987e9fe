import math

import pytest
from etils import epath

from tests.messages import refused
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.transfer import results

KEY = "held_out/accuracy"


def row(score, state="finished", seed="0", key=KEY, reason="", **values):
    fields = {name.replace("__", "."): value for name, value in values.items()}
    point = Point(1, fields | {"seed": seed}, {"config": "x.py"})
    numbers = {} if score is None else {key: score}
    return PointProgress(point, epath.Path("x"), state, 10, numbers, reason=reason)


def test_the_mean_over_seeds_decides():
    rows = [
        *(row(score, seed=seed, optim__lr="1") for seed, score in (("0", 0.9), ("1", 0.5))),
        *(row(score, seed=seed, optim__lr="2") for seed, score in (("0", 0.8), ("1", 0.7))),
    ]
    chosen = results.choose(rows, KEY)
    assert (chosen.chosen, chosen.score) == ({"optim.lr": "2"}, pytest.approx(0.75))
    assert [each.scores for each in chosen.candidates] == [
        {"0": 0.9, "1": 0.5}, {"0": 0.8, "1": 0.7}
    ]  # fmt: skip


def test_of_equal_ones_the_smaller_learning_rate_then_fewer_steps():
    points = [("100", "3e-3"), ("50", "1e-2"), ("200", "3e-3"), ("50", "3e-3")]
    rows = [row(0.5, total__steps=steps, optim__lr=lr) for steps, lr in points]
    assert results.choose(rows, KEY).chosen == {"total.steps": "50", "optim.lr": "3e-3"}
    rows = [row(0.5, optim__name=name) for name in ("sgd", "adam")]
    assert results.choose(rows, KEY).chosen == {"optim.name": "sgd"}  # the first


def test_a_candidate_with_a_failed_seed_or_no_finite_number_is_left_out():
    rows = [
        row(0.9, optim__lr="1"),
        row(None, state="failed", seed="1", reason="diverged", optim__lr="1"),
        row(0.2, optim__lr="2"),
        row(0.2, seed="1", optim__lr="2"),
        row(math.nan, optim__lr="3"),
        row(0.99, seed="1", optim__lr="3"),
    ]
    chosen = results.choose(rows, KEY)
    assert chosen.chosen == {"optim.lr": "2"}
    assert chosen.candidates[0].failures == ["optim.lr=1,seed=1: diverged"]
    assert chosen.candidates[2].failures == ["optim.lr=3,seed=0: not finite"]
    with refused("held_out"):
        results.choose([row(None, state="failed", reason="bad", optim__lr="1")], KEY)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [("1e-3", "is the smallest of those tried (1e-3, 3e-3, 1e-2): a smaller"), ("3e-3", None),
     ("1e-2", "is the largest of those tried (1e-3, 3e-3, 1e-2): a larger")],
)  # fmt: skip
def test_a_choice_at_the_edge_is_said(chosen, said):
    rows = [row(0.9 if lr == chosen else 0.5, optim__lr=lr) for lr in ("1e-3", "1e-2", "3e-3")]
    sentences = results.choose(rows, KEY).at_edge
    assert len(sentences) == (said is not None)
    if said:
        assert said in sentences[0]


@pytest.mark.parametrize("text", ["", "[]", '{"chosen": {}}', '{"candidates": [{"x": 1}]}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / results.CHOICE_FILE).write_text(text)
    with refused("choice.json"):
        results.read_choice(epath.Path(tmp_path))
