"""The points of a study by themselves; study/run_test.py has those of whole studies."""

from etils import epath

from tests.tools.lab.conftest import DIGITS
from vit_jax.tools.lab.study import points
from vit_jax.tools.lab.sweep.grid import Point
from vit_jax.tools.lab.sweep.progress import PointProgress


def collect(configs):
    """The points of these config files, all of one cost."""
    cost = points.costs([Point(1, {}, {"config": DIGITS})])["run"]
    members = [Point(n, {"config": config}, {}) for n, config in enumerate(configs, start=1)]
    rows = [PointProgress(each, epath.Path("x"), "finished") for each in members]
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
    assert [each.model for each in collect(configs)] == names
    assert [each.model for each in collect(configs[:2])] == ["small", "large"]
