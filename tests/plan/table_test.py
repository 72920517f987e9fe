import dataclasses
import json

import pytest

from vit_jax import models
from vit_jax.plan import table
from vit_jax.plan.forecast import Forecast, Memory, StepTime
from vit_jax.plan.hosts import HostNeeds

GIB = 2**30


@pytest.fixture
def found():
    """A run of 36,000 steps on four chips, of a tenth of a second each: four chip-hours."""
    return Forecast(
        topology="v5e:2x2",
        device_kind="TPU v5 lite",
        devices=4,
        chips=4,
        hosts=1,
        mesh={"data": 4},
        model=models.info("ViT-Ti/16", num_classes=10),
        batch_size=1000,
        steps=36_000,
        memory=Memory(GIB, 2 * GIB, 0, 10 * GIB, None, 16 * GIB),
        sent=None,
        compile_secs=None,
        from_cache=False,
        time=StepTime(0.1, None, None, None),
        peak_flops=None,
        saved_bytes=3 * GIB,
        host=HostNeeds(1000, 1, 1),
    )


def test_a_cost_is_the_same_for_people_and_programs(found):
    assert dict(table.rows(found, price=1.5))["cost"] == "at least 6, at 1.5 a chip-hour"
    assert json.loads(table.as_json(found, price=1.5))["cost"] == pytest.approx(6)
    assert json.loads(table.as_json(found, price=None))["cost"] is None
    assert "cost" not in dict(table.rows(found, price=None))


@pytest.mark.parametrize(
    ("activations", "free", "marked"),
    [(10 * GIB, "3 GiB", False), (13 * GIB, "0 B", False), (14 * GIB, "-1 GiB", True)],
)
def test_what_will_hardly_fit_is_marked(found, activations, free, marked):
    memory = dataclasses.replace(found.memory, activations=activations)
    said = dict(table.rows(dataclasses.replace(found, memory=memory), price=None))["  free"]
    assert said.strip().startswith(free)
    assert ("will hardly fit" in said) == marked


@pytest.mark.parametrize(
    ("steps", "said"), [(1, "7.52 TFLOPs"), (1_000, "0.007521 exaFLOPs")], ids=str
)
def test_flops_of_short_runs_can_be_read(found, steps, said):
    run = dict(table.rows(dataclasses.replace(found, steps=steps), price=None))["the run"]
    assert run == f"{steps:,} steps of 1,000 images: {said}"
