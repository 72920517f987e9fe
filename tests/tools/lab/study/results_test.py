import numpy as np
import pytest

from vit_jax.tools.lab.study import points
from vit_jax.tools.lab.study.results import frontier, optimum, stretches
from vit_jax.tools.lab.sweep.grid import CONFIG, Point

# A small model that saturates, and a large one that is better from between 4 and 8 on.
MODELS = ["small"] * 4 + ["large"] * 3
EXAFLOPS = [1.0, 2.0, 4.0, 8.0, 4.0, 8.0, 16.0]
LOSS = [0.8, 0.5, 0.4, 0.4, 0.6, 0.3, 0.2]


def by_model(models, exaflops, loss):
    """The frontier of each model, by its label [n]."""
    return {
        model: frontier(exaflops, {i: loss[i] for i, each in enumerate(models) if each == model})
        for model in dict.fromkeys(models)
    }


@pytest.fixture
def frontiers():
    return by_model(MODELS, EXAFLOPS, LOSS)


def test_a_frontier_has_what_no_cheaper_training_is_as_good_as():
    found = frontier([4, 1, 2, 2, 8], dict(enumerate([0.4, 0.8, 0.5, 0.6, 0.4])))
    np.testing.assert_array_equal(found.points, [1, 2, 0])
    np.testing.assert_array_equal(found.exaflops, [1, 2, 4])
    np.testing.assert_array_equal(found.loss, [0.8, 0.5, 0.4])
    assert frontier([3.0], {0: 0.1}).points.tolist() == [0]


def test_between_trainings_a_line_goes_over_logarithms(frontiers):
    small = frontiers["small"]
    assert small.loss_at(np.sqrt(2.0)) == pytest.approx(np.sqrt(0.8 * 0.5))
    assert small.loss_at(2.0) == pytest.approx(0.5)
    assert small.loss_at(100.0) == pytest.approx(0.4)
    assert small.loss_at(0.99) == np.inf


def test_the_best_model_for_a_budget(frontiers):
    at_two, at_ten = optimum(frontiers, 2.0), optimum(frontiers, 10.0)
    assert (at_two.model, at_two.between, at_two.beyond) == ("small", (1,), False)
    assert (at_ten.model, at_ten.between) == ("large", (5, 6))
    assert 0.2 < at_ten.loss < 0.3
    tiny = by_model(MODELS, [1e-9 * each for each in EXAFLOPS], LOSS)
    assert optimum(tiny, 10e-9).between == (5, 6)
    assert optimum(frontiers, 32.0) == optimum(frontiers, 16.0)._replace(budget=32.0, beyond=True)
    assert optimum(frontiers, 0.5).model is None
    assert optimum({}, 1.0).model is None


def test_stretches_say_where_the_best_model_changes(frontiers):
    first, second = stretches(frontiers)
    assert (first.model, first.low, second.model, second.high) == ("small", 1.0, "large", 16.0)
    # ln 0.6 - a ln 0.5 = ln 0.4: the lines cross where the large one has come down to 0.4.
    crossing = 4 * 2 ** (np.log(0.6 / 0.4) / np.log(0.6 / 0.3))
    assert first.high == second.low == pytest.approx(crossing, rel=0.02)


def test_costs_of_images_with_other_channels():
    common = {CONFIG: "configs/vit_digits.py", "input.num_examples": "64"}
    common |= {"input.num_classes": "10"}
    each = [Point(i, {"model.channels": channels}, common) for i, channels in enumerate("34")]
    costs = list(points.costs(each).values())
    assert costs[0].model.parameters < costs[1].model.parameters
