import dataclasses
import json
import types

import jax
import pytest

from tests.messages import refused
from vit_jax import models
from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.parallel.products import Products
from vit_jax.tools.plan import __main__ as command
from vit_jax.tools.plan.compiled import DoesNotFit, Figures
from vit_jax.tools.plan.forecast import Forecast, HostNeeds, Memory, StepTime

CONFIG = """
import ml_collections

def get_config(arg=None):
    return ml_collections.ConfigDict({
        "model": {"name": "ViT-Ti/16", "depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2},
        "input": {"preprocess": "decode|resize(32)", "batch_size": 16, "num_classes": 10,
                  "num_examples": 800},
        "loss": {"mixup": 0.2},
        "total": {"steps": 100},
    })
"""
FLAGS = {
    "topology": None, "compile": True, "chip_hour_price": None, "json": False,
    "largest_batch": False, "memory_gib": None,
}  # fmt: skip


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """`plan("input.num_classes=none", compile=False)`: the command's output."""
    monkeypatch.setattr(compilation_cache, "use", lambda: None)
    monkeypatch.setattr(command.command, "refuse_flags", lambda *_, **__: None)
    file = tmp_path / "config.py"
    file.write_text(CONFIG)
    keeps = jax.config.jax_enable_compilation_cache

    def plan(*overrides, **changes):
        given = {**FLAGS, "config": str(file), "config_override": overrides, **changes}
        monkeypatch.setattr(command, "FLAGS", types.SimpleNamespace(**given))
        command.main([])
        return capsys.readouterr().out

    yield plan
    jax.config.update("jax_enable_compilation_cache", keeps)


def test_a_table_of_the_devices_here(plan):
    lines = plan(compile=False).splitlines()
    assert any(line.startswith("model") and "ViT-Ti/16, " in line for line in lines)
    assert any("100 steps of 16 images" in line for line in lines)
    assert any(line.startswith("  parameters ") for line in lines)
    assert not any(line.startswith("compiled in") for line in lines)


@pytest.mark.parametrize(
    ("overrides", "batches"),
    [
        (["input.source=digits"], 1437 / 16),
        (["input.source=digits", "input.subset_fraction=0.5"], 718 / 16),
        (["input.mixture.a.source=digits"], 1437 / 16),
    ],
)
def test_data_that_are_here_are_counted(plan, overrides, batches):
    counted = ("input.num_examples=none", "input.num_classes=none", "total.epochs=100")
    document = json.loads(plan(*counted, *overrides, compile=False, json=True))
    assert document["steps"] == round(100 * batches)
    assert document["memory"]["peak"] is document["sent"] is document["compile_secs"] is None


@pytest.mark.usefixtures("quick_compilation")
def test_plans_a_step_with_rejection_sampling(plan):
    lines = plan("loss.mixup=0.2").splitlines()
    assert any(line.startswith("compiled in") and line.endswith(" s") for line in lines)
    assert any(line.startswith("  peak") and line.endswith("iB") for line in lines)


@pytest.mark.slow
def test_a_topology_that_is_too_small_says_what_would_fit(plan):
    pytest.importorskip("libtpu")
    with pytest.raises(UserError) as error:
        plan(
            *("model.name=ViT-L/16", "model.depth=24", "model.width=1024", "model.num_heads=16"),
            *("model.mlp_dim=4096", "model.scan=true"),
            "model.dtype=bfloat16",
            "input.preprocess=decode|resize(224)",
            "input.batch_size=256",
            topology="v5e:1x1",
        )
    assert isinstance(error.value.__cause__, DoesNotFit)
    assert "--config.model.remat=full" in str(error.value)


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
    figures=None,
    time=StepTime(0.1, None, None, None),
    peak_flops=None,
    saved_bytes=3 * GIB,
    host=HostNeeds(1000, 1, 1),
)


def test_a_cost_is_the_same_in_table_and_json():
    shown = dict(command.rows(FOUR_CHIPS, price=None))
    assert [shown[f"  {part}"].strip() for part in ("optimizer", "average")] == ["2 GiB", "0 B"]
    assert dict(command.rows(FOUR_CHIPS, price=1.5))["cost"] == "at least 6, at 1.5 a chip-hour"
    assert json.loads(command.as_json(FOUR_CHIPS, price=1.5))["cost"] == pytest.approx(6)
    assert json.loads(command.as_json(FOUR_CHIPS, price=None))["cost"] is None
    assert "cost" not in dict(command.rows(FOUR_CHIPS, price=None))


def test_times_of_gpus_are_said_to_be_bounds():
    time = StepTime(0.05, 0.06, 0.01, None, 0.1)
    figures = Figures(1, {}, 0.0, 150 * GIB, 1.0, kernels=1766)
    run = dataclasses.replace(FOUR_CHIPS, topology="h100:4", time=time, figures=figures)
    shown = dict(command.rows(run, price=2))
    assert shown["a device runs in a step"] == "1,766 kernels"
    assert shown["  that read and write"].strip() == "150 GiB"
    assert shown["  at least, by roofline"].strip() == "100.0 ms, not a measurement"
    assert (shown["MFU"], shown["chip-hours"]) == ("at most 50%", "at least 4")
    assert shown["cost"] == "at least 8, at 2 a chip-hour"
    assert run.core_days is None
    assert "TPU" not in shown["chip-hours"]


STATE = 100


@pytest.fixture
def found(tiny_run):
    """`found(batch_size, there)`: what fits where an image takes a byte beside the state."""

    def found(batch_size, there, *, devices=2, given=None, refuses=False):
        config = tiny_run(f"input.batch_size={batch_size}")
        mesh = types.SimpleNamespace(shape={"replica": 1, "data": devices, "fsdp": 1, "tensor": 1})
        tried = []

        def memory_of(config):
            parts = config.optim.grad_accum_steps
            tried.append((config.input.batch_size, parts))
            micro = config.input.batch_size // parts // devices
            if refuses and STATE + micro > there:
                raise DoesNotFit("too large")
            return Memory(0, 0, 0, None, STATE + micro, there)

        return command.largest_batch(config, mesh, memory_of, there=given), tried

    return found


@pytest.mark.parametrize("refuses", [False, True])
def test_the_fewest_microbatches_that_fit(found, refuses):
    best, tried = found(960, STATE + 100, refuses=refuses)
    assert (best.grad_accum_steps, best.peak) == (5, STATE + 96)
    assert (best.in_one_go, best.too_large) == (192, 240)
    assert len(tried) <= 7 and len(set(tried)) == len(tried)
    assert ("the same update by", "--config.optim.grad_accum_steps=5") in best.rows()


def test_a_batch_that_fits_is_doubled(found):
    best, tried = found(16, STATE + 100)
    assert best == (16, 1, STATE + 8, STATE + 100, 128, 256)
    assert [size for size, _ in tried] == [16, 32, 64, 128, 256]
    assert found(16, 10**9)[0].too_large is None


def test_what_can_never_fit_or_is_not_known_is_refused(found):
    with refused(8, 2, error=DoesNotFit):
        found(16, STATE)
    with refused("--memory_gib", "--topology"):
        found(16, None)
    assert found(16, None, given=STATE + 100)[0].there == STATE + 100


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_of_a_real_step(plan):  # that fixture
    model = ("model.name=ViT-Ti/4", "model.depth=2", "input.batch_size=256")
    peak = lambda parts: json.loads(plan(*model, f"optim.grad_accum_steps={parts}", json=True))[
        "memory"
    ]["peak"]
    whole, less = peak(1), peak(8)
    assert less < whole
    gib = (whole + less) / 2 / 2**30
    best = json.loads(plan(*model, largest_batch=True, memory_gib=gib, json=True))
    assert 1 < best["grad_accum_steps"] <= 8 and best["peak"] <= gib * 2**30
    assert peak(best["grad_accum_steps"]) == best["peak"]
