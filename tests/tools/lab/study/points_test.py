"""The points of a study by themselves; study/run_test.py has those of whole studies."""

from etils import epath

from tests.tools.lab.conftest import DIGITS
from vit_jax.core.screen import format_significant
from vit_jax.tools.lab.study import page, points, results
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.tools.lab.sweep.progress import PointProgress


def collect(values, states=()):
    """The points of these values, all of one cost; their states, by default finished."""
    cost = points.costs([Point(1, {}, {"config": DIGITS})])["run"]
    members = [Point(n, each, {"config": DIGITS}) for n, each in enumerate(values, start=1)]
    states = states or ["finished"] * len(members)
    rows = [
        PointProgress(each, epath.Path("x"), state)
        for each, state in zip(members, states, strict=True)
    ]
    return points.collect(rows, {each.name: cost for each in members})


def test_models_have_the_shortest_names_that_tell_them_apart():
    configs = [
        "vit.py:small",
        "vit.py:large",
        "resnet.py:small",
        "mixer.py",
        "a/x.py:s",
        "b/x.py:s",
    ]
    names = ["vit:small", "large", "resnet:small", "mixer", "a/x.py:s", "b/x.py:s"]
    values = [{"config": config} for config in configs]
    assert [each.model for each in collect(values)] == names
    assert [each.model for each in collect(values[:2])] == ["small", "large"]


def test_a_page_counts_the_compute_of_all_seeds_also_of_those_to_come():
    found = collect([{"seed": seed} for seed in "012"], ["finished", "waiting", "failed"])
    assert (found[0].seeds, found[0].trainings) == (1, 3)
    text = page.page("x", results.analyse(DIGITS, found, "test/accuracy", "M2", ()))
    total = format_significant(3 * found[0].cost.exaflops)
    assert f"all of them together take {total} exaFLOPs" in text
