import json
import types

import jax
import pytest

from vit_jax.core import compilation_cache
from vit_jax.core.errors import UserError
from vit_jax.tools.plan import __main__ as command

FLAGS = {
    "topology": None, "compile": True, "cache": True, "chip_hour_price": None, "json": False,
    "largest_batch": False, "memory_gib": None,
}  # fmt: skip


@pytest.fixture
def plan(config_file, monkeypatch, capsys):
    """`plan("input.num_classes=none", compile=False)`: the command's output."""
    monkeypatch.setattr(compilation_cache, "use", lambda: None)
    keeps = jax.config.jax_enable_compilation_cache

    def plan(*overrides, **changes):
        given = {**FLAGS, "config": config_file, "config_override": overrides, **changes}
        monkeypatch.setattr(command, "FLAGS", types.SimpleNamespace(**given))
        command.main([])
        return capsys.readouterr().out

    yield plan
    jax.config.update("jax_enable_compilation_cache", keeps)


@pytest.mark.slow
def test_a_table_of_the_devices_here(process):
    assert any(line.startswith("model") and "ViT-Ti/16, " in line for line in process)
    assert any("100 steps of 16 images" in line for line in process)
    assert any(line.startswith("  parameters ") for line in process)
    assert not any(line.startswith("compiled in") for line in process)


def test_prints_json(plan):
    document = json.loads(plan(compile=False, json=True))
    assert document["steps"] == 100
    assert document["memory"]["peak"] is None
    assert document["model"]["name"] == "ViT-Ti/16"


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        ((), {"topology": "v9:2x2"}, "generation 'v9'"),
        (("input.num_classes=none",), {}, "--config.input.num_classes="),
        ((), {"chip_hour_price": 1.0}, "--topology"),
        ((), {"largest_batch": True}, "--largest_batch needs the compiler"),
        ((), {"memory_gib": 1.0}, "--memory_gib is read by --largest_batch alone"),
        ((), {"memory_gib": float("nan")}, "--memory_gib=nan: give a number"),
        (
            (),
            {"topology": "v5e:2x2", "chip_hour_price": float("nan")},
            "--chip_hour_price=nan: give a number",
        ),
    ],
)
def test_user_errors_give_one_message(plan, overrides, changes, message):
    with pytest.raises(UserError, match=message):
        plan(*overrides, compile=False, **changes)


@pytest.mark.usefixtures("quick_compilation")
def test_plans_a_step_with_rejection_sampling(plan):
    lines = plan("loss.mixup=0.2").splitlines()
    assert any(line.startswith("compiled in") and line.endswith(" s") for line in lines)
    assert any(line.startswith("  peak") and line.endswith("iB") for line in lines)


@pytest.mark.slow
def test_a_second_plan_for_a_topology_compiles_nothing(plan, monkeypatch, tmp_path):
    pytest.importorskip("libtpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second, third = (
        json.loads(plan(topology="v5e:1x1", json=True, cache=cache))
        for cache in (True, True, False)
    )
    assert [one.pop("from_cache") for one in (first, second, third)] == [False, True, False]
    assert first == second
    assert third.pop("compile_secs") != first.pop("compile_secs")
    assert third == first


@pytest.mark.slow
def test_a_topology_that_is_too_small_says_what_would_fit(plan):
    pytest.importorskip("libtpu")
    with pytest.raises(UserError, match="The step does not fit") as error:
        plan(
            *("model.name=ViT-L/16", "model.depth=24", "model.width=1024", "model.num_heads=16"),
            *("model.mlp_dim=4096", "model.scan=true"),
            "model.dtype=bfloat16",
            "input.preprocess=decode|resize(224)",
            "input.batch_size=256",
            topology="v5e:1x1",
        )
    assert "It fits, in" in str(error.value)
    assert "--config.model.remat=full" in str(error.value)
