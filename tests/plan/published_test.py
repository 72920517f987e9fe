import pytest

from vit_jax import models
from vit_jax.plan import published, table
from vit_jax.plan.forecast import Forecast, Memory, StepTime
from vit_jax.plan.hosts import HostNeeds


def forecast(name, steps, *, topology="v3:16x16", secs=0.1, **fields):
    """Of 512 cores that take `secs` for a step of 4096 images."""
    return Forecast(
        topology=topology,
        device_kind="TPU v3",
        devices=512,
        chips=256,
        hosts=64,
        mesh={"data": 512},
        model=models.info(name, num_classes=18_291, pre_logits=True, **fields),
        batch_size=4096,
        steps=steps,
        memory=Memory(1, 2, 0, 3, None, None),
        sent=None,
        compile_secs=None,
        from_cache=False,
        time=StepTime(None, None, None, secs),
        peak_flops=None,
        saved_bytes=3,
        host=HostNeeds(64, 1, 1),
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
    found = forecast(name, steps)
    assert published.compare(found) == (core_days, pytest.approx(ours / core_days))
    said = dict(table.rows(found, price=None))["the paper"]
    assert said == (f"{core_days:,} TPUv3-core-days (table 2); this plan: {ours / core_days:.2f} x")


@pytest.mark.parametrize(
    "found",
    [
        forecast("ViT-B/16", 1_035_645),
        forecast("ViT-L/16", 103_608),  # 30 epochs of ImageNet-21k
        forecast("ViT-L/16", 310_823, image_size=384),
    ],
)
def test_another_run_is_not_compared(found):
    assert published.compare(found) is None
    assert "the paper" not in dict(table.rows(found, price=None))


def test_other_chips_have_no_ratio():
    found = forecast("ViT-L/16", 310_823, topology="v5e:16x16")
    assert published.compare(found) == (230, None)
    assert dict(table.rows(found, price=None))["the paper"] == "230 TPUv3-core-days (table 2)"


def test_without_an_estimate_there_is_no_ratio():
    found = forecast("ViT-L/16", 310_823, secs=None)
    assert published.compare(found).ratio is None
