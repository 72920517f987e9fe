import numpy as np
import pytest
from etils import epath

from tests.messages import refused
from vit_jax.tools.verify import recipe_card
from vit_jax.tools.verify.recipe_card import LoggedRun

STEPS = range(10, 1001, 10)
LOSS = recipe_card.LOSS


def rows(seed, factor=1.0, spread=0.02):
    """Rows of a made-up run: a falling loss with its own noise, and evaluations."""
    random = np.random.default_rng(seed)
    losses = 0.3 + 2 * np.exp(-np.array(STEPS) / 300)
    losses = losses * factor * (1 + spread * random.normal(size=len(losses)))
    logged = {step: {"step": step, LOSS: loss} for step, loss in zip(STEPS, losses, strict=True)}
    for step in range(200, 1001, 200):
        logged[step] |= {"test/loss": 0.5 * (1 + spread * random.normal())}
    logged[1000] |= {"test/accuracy": 0.9 + 0.002 * random.normal(), "test/examples": 360.0}
    return logged


def run(seed, logged):
    origin = {"seed": seed, "versions": {"jax": "0.10"}, "devices": {"count": 1, "kind": "cpu"}}
    return LoggedRun(epath.Path("runs/x"), {}, {"input": "0123"}, origin, logged)


def card(seeds=(0, 1, 2), **fields):
    runs = [run(seed, rows(seed, **fields)) for seed in seeds]
    metrics = ["test/loss", "test/accuracy", "test/examples"]
    return recipe_card.record("configs/x.py", {"optim": {"lr": 0.1}}, runs, metrics)


def outside(card, logged):
    return [(c.step, c.metric) for c in recipe_card.compare(card, logged) if not c.is_within]


def test_runs_of_other_seeds_are_in_range():
    """Student's t at 10 degrees of freedom exceeds 5 once in 2,000, and ten are compared."""
    fallen = [
        bool(outside(made, rows(seed)))
        for made in (card((s, s + 1, s + 2)) for s in range(0, 60, 3))
        for seed in range(100, 110)
    ]
    assert sum(fallen) / len(fallen) < 0.02


def test_every_number_is_compared_in_order():
    compared = recipe_card.compare(card(), rows(5))
    of = lambda metric: [c.step for c in compared if c.metric == metric]
    assert of(LOSS) == [*range(200, 1001, 200)]
    assert of("test/loss") == [*range(200, 1001, 200)]
    assert of("test/accuracy") == of("test/examples") == [1000]
    assert [c.step for c in compared] == sorted(c.step for c in compared)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_first_deviation_is_the_first_window_of_it(factor):
    assert outside(card(), rows(5, factor))[0] == (200, LOSS)
    logged = rows(5)
    for step in range(510, 1001, 10):
        logged[step][LOSS] *= 1.2
    assert outside(card(), logged)[0] == (600, LOSS)


def test_metrics_at_the_end_are_compared():
    logged = rows(5)
    logged[1000] |= {"test/accuracy": 0.7, "test/examples": 1437.0}
    assert outside(card(), logged) == [(1000, "test/accuracy"), (1000, "test/examples")]
    logged[400] |= {"test/loss": 0.6}
    assert outside(card(), logged)[0] == (400, "test/loss")


@pytest.mark.parametrize(
    ("step", "metric", "found"), [(320, LOSS, 400), (1000, "test/accuracy", 1000)]
)
def test_what_is_not_finite_is_a_deviation(step, metric, found):
    logged = rows(5)
    logged[step][metric] = None
    assert outside(card(), logged) == [(found, metric)]


def test_runs_are_compared_at_the_steps_of_the_card_that_they_have():
    running = {step: row for step, row in rows(5).items() if step <= 430}
    assert [c.step for c in recipe_card.compare(card(), running)] == [200, 200, 400, 400]
    logged = rows(5) | {5: {LOSS: 100.0}, 15: {}}
    assert not outside(card(), logged)
    del logged[250]
    losses = [c.step for c in recipe_card.compare(card(), logged) if c.metric == LOSS]
    assert losses == [200, 600, 800, 1000]


def test_the_very_same_run_is_noticed():
    made, same, other = card(), rows(1), rows(1)
    assert recipe_card.same_until(made, 1, same) == 1000
    other[400][LOSS] *= 1.001
    assert recipe_card.same_until(made, 1, other) == 390
    assert recipe_card.same_until(made, 2, same) == 0
    assert recipe_card.same_until(made, 7, rows(7)) == 0


def test_a_card_is_read_as_it_was_written(tmp_path):
    file = epath.Path(tmp_path / "cards" / "x.json")
    made = card()
    made.write(file)
    assert recipe_card.read(file) == made
    assert max(map(len, file.read_text().splitlines())) > 500  # one line per curve


@pytest.mark.parametrize(
    ("seeds", "logged", "name"),
    [
        ((0, 1), [rows(0), rows(1)], 3),
        ((0, 1, 1), [rows(0), rows(1), rows(1)], "0, 1, 1"),
        ((0, 1, 2), [rows(0), rows(1), {10: rows(2)[10]}], "10, 1000"),
        ((0, 1, 2), [{}, {}, {}], LOSS),
        ((0, 1, 2), [rows(0), rows(1), rows(2) | {20: {LOSS: None}}], LOSS),
    ],
)
def test_runs_that_make_no_card_are_refused(seeds, logged, name):
    runs = list(map(run, seeds, logged))
    with refused(name):
        recipe_card.record("configs/x.py", {}, runs, ["test/accuracy"])
