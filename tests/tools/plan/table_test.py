import dataclasses
import json

import pytest

from vit_jax import models
from vit_jax.parallel.products import Products
from vit_jax.tools.plan import table
from vit_jax.tools.plan.forecast import Forecast, HostNeeds, Memory, StepTime

GIB = 2**30


TINY = models.info("ViT-Ti/16", num_classes=10)
# A run of 36,000 steps of a tenth of a second on four chips: four chip-hours.
FOUR_CHIPS = Forecast(
    topology="v5e:2x2",
    device_kind="TPU v5 lite",
    devices=4,
    chips=4,
    hosts=1,
    mesh={"data": 4},
    model=TINY,
    method="supervised",
    products=Products(TINY.forward_flops),
    batch_size=1000,
    steps=36_000,
    memory=Memory(GIB, 2 * GIB, 0, 10 * GIB, None, 16 * GIB),
    sent=None,
    accessed=None,
    kernels=None,
    compile_secs=None,
    from_cache=False,
    time=StepTime(0.1, None, None, None),
    peak_flops=None,
    saved_bytes=3 * GIB,
    host=HostNeeds(1000, 1, 1),
)


def test_a_cost_is_the_same_in_table_and_json():
    assert dict(table.rows(FOUR_CHIPS, price=1.5))["cost"] == "at least 6, at 1.5 a chip-hour"
    assert json.loads(table.as_json(FOUR_CHIPS, price=1.5))["cost"] == pytest.approx(6)
    assert json.loads(table.as_json(FOUR_CHIPS, price=None))["cost"] is None
    assert "cost" not in dict(table.rows(FOUR_CHIPS, price=None))


@pytest.mark.parametrize(
    ("activations", "free", "marked"),
    [(10 * GIB, "3 GiB", False), (13 * GIB, "0 B", False), (14 * GIB, "-1 GiB", True)],
)
def test_a_tight_fit_is_marked(activations, free, marked):
    memory = dataclasses.replace(FOUR_CHIPS.memory, activations=activations)
    shown = dict(table.rows(dataclasses.replace(FOUR_CHIPS, memory=memory), price=None))["  free"]
    assert shown.strip().startswith(free)
    assert ("will hardly fit" in shown) == marked


def test_what_a_method_computes_has_a_row_and_counts():
    assert "  by dino" not in dict(table.rows(FOUR_CHIPS, price=None))
    of_dino = dataclasses.replace(FOUR_CHIPS, method="dino", products=Products(2e9, 1e9))
    shown = dict(table.rows(of_dino, price=None))["  by dino"]
    assert shown == "3 GFLOPs per example forward, 1 GFLOPs of them without gradients"
    assert of_dino.exaflops == pytest.approx(7e9 * 36e6 / 1e18)
    document = json.loads(table.as_json(of_dino, price=None))
    assert document["products"] == {"learnt": 2e9, "given": 1e9}


@pytest.mark.parametrize(
    ("steps", "shown"), [(1, "7.52 TFLOPs"), (1_000, "0.007521 exaFLOPs")], ids=str
)
def test_flops_of_short_runs_can_be_read(steps, shown):
    run = dict(table.rows(dataclasses.replace(FOUR_CHIPS, steps=steps), price=None))["the run"]
    assert run == f"{steps:,} steps of 1,000 images: {shown}"


def test_times_of_gpus_are_said_to_be_bounds():
    time = StepTime(0.05, 0.06, 0.01, None, 0.1)
    run = dataclasses.replace(
        FOUR_CHIPS, topology="h100:4", time=time, sent={}, kernels=1766, accessed=150 * GIB
    )
    shown = dict(table.rows(run, price=2))
    assert shown["a device runs in a step"] == "1,766 kernels"
    assert shown["  that read and write"].strip() == "150 GiB"
    assert shown["  at least, by roofline"].strip() == "100.0 ms, not a measurement"
    assert (shown["MFU"], shown["chip-hours"]) == ("at most 50%", "at least 4")
    assert shown["cost"] == "at least 8, at 2 a chip-hour"
    assert run.core_days is None
    assert "TPU" not in shown["chip-hours"]


# The runs of the paper.


def forecast(name, steps, *, topology="v3:16x16", secs=0.1, **fields):
    """A forecast on 512 cores that take `secs` per step of 4096 images."""
    model = models.info(name, num_classes=18_291, pre_logits=True, **fields)
    return dataclasses.replace(
        FOUR_CHIPS,
        topology=topology,
        chips=256,
        model=model,
        products=Products(model.forward_flops),
        batch_size=4096,
        steps=steps,
        time=StepTime(None, None, None, secs),
    )


@pytest.mark.parametrize(
    ("name", "steps", "core_days"),
    [
        ("ViT-H/14", 1_035_645, 2500),
        ("ViT-L/16", 1_035_645, 680),
        ("ViT-L/16", 310_823, 230),
    ],
)
def test_the_runs_of_table_2(name, steps, core_days):
    ours = 512 * 0.1 * steps / 86_400
    run = forecast(name, steps)
    assert table.paper_comparison(run) == {
        "core_days": core_days,
        "ratio": pytest.approx(ours / core_days),
    }
    row = dict(table.rows(run, price=None))["the paper"]
    assert row == (f"{core_days:,} TPUv3-core-days (table 2); this plan: {ours / core_days:.2f} x")


@pytest.mark.parametrize(
    "run",
    [
        forecast("ViT-B/16", 1_035_645),
        forecast("ViT-L/16", 103_608),  # 30 epochs of ImageNet-21k
        forecast("ViT-L/16", 310_823, image_size=384),
    ],
)
def test_another_run_is_not_compared(run):
    assert table.paper_comparison(run) is None
    assert "the paper" not in dict(table.rows(run, price=None))


def test_other_chips_have_no_ratio():
    run = forecast("ViT-L/16", 310_823, topology="v5e:16x16")
    assert table.paper_comparison(run) == {"core_days": 230, "ratio": None}
    assert dict(table.rows(run, price=None))["the paper"] == "230 TPUv3-core-days (table 2)"


def test_without_an_estimate_there_is_no_ratio():
    run = forecast("ViT-L/16", 310_823, secs=None)
    assert table.paper_comparison(run)["ratio"] is None
