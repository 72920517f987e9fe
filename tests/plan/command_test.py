import json

import pytest

CONFIG = """
import ml_collections

def get_config(arg=None):
    return ml_collections.ConfigDict({
        "model": {"name": "ViT-Ti/16"},
        "input": {"preprocess": "decode|resize(32)", "batch_size": 8, "num_classes": 10,
                  "num_examples": 800},
        "total": {"steps": 100}, "optim": {"warmup_steps": 0},
    })
"""


@pytest.fixture
def plan(tmp_path, run_python):
    (tmp_path / "config.py").write_text(CONFIG)
    arguments = ("-m", "vit_jax.plan", "--config", str(tmp_path / "config.py"))
    return lambda *flags, **env: run_python(*arguments, *flags, **env)


def test_a_table_of_the_devices_here(plan):
    done = plan("--nocompile")
    assert done.returncode == 0, done.stderr
    assert "ViT-Ti/16, " in done.stdout
    assert "100 steps of 8 images" in done.stdout, done.stdout
    assert "parameters" in done.stdout


def test_as_json(plan):
    found = json.loads(plan("--nocompile", "--json").stdout)
    assert found["steps"] == 100
    assert found["memory"]["peak"] is None
    assert found["model"]["name"] == "ViT-Ti/16"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--topology=v9:2x2",), "generation 'v9'"),
        (("--nocompile", "--config.input.num_classes=none"), "--config.input.num_classes="),
        (("--nocompile", "--chip_hour_price=1"), "--topology"),
        (("--topology=v5e:2x2", "--chip_hour_price=nan"), "--chip_hour_price=nan: give a number"),
    ],
)
def test_the_users_errors_are_one_message(plan, flags, said):
    done = plan(*flags)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_of_a_step_that_draws_until_it_is_accepted(plan):
    done = plan("--config.loss.mixup=0.2")
    assert done.returncode == 0, done.stderr
    assert "compiled in" in done.stdout


@pytest.mark.slow
def test_a_second_plan_for_a_topology_compiles_nothing(plan, tmp_path):
    pytest.importorskip("libtpu")
    arguments = ("--topology=v5e:1x1", "--config.model.depth=1", "--json")
    found = [
        json.loads(plan(*arguments, *more, XDG_CACHE_HOME=str(tmp_path)).stdout)
        for more in ((), (), ("--nocache",))
    ]
    assert [one.pop("from_cache") for one in found] == [False, True, False]
    assert found[0] == found[1]
    assert found[2].pop("compile_secs") != found[0].pop("compile_secs")
    assert found[2] == found[0]


@pytest.mark.slow
def test_a_topology_that_is_too_small_says_what_would_fit(plan):
    pytest.importorskip("libtpu")
    done = plan(
        "--topology=v5e:1x1",
        "--config.model.scan=true",
        "--config.model.name=ViT-L/16",
        "--config.model.dtype=bfloat16",
        "--config.input.preprocess=decode|resize(224)",
        "--config.input.batch_size=256",
    )
    assert done.returncode == 1
    assert "The step does not fit" in done.stderr
    assert "It fits, in" in done.stderr
    assert "--config.model.remat=full" in done.stderr
