import json

import vit_jax
from tests.messages import refused
from vit_jax.run import info
from vit_jax.train import train


def test_versions_devices_and_settings(monkeypatch, capsys):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    info.main([])
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines()] == [
        *("- versions", "- system", "- devices", "- settings"),
    ]
    assert (
        f"vit_jax {vit_jax.__version__}" in out and "jax 0." in out and "MALLOC_ARENA_MAX=3" in out
    )


def test_the_config_of_a_run(tiny_run, tmp_path, run_python):
    train(tiny_run("total.steps=2"), tmp_path)
    done = run_python("-m", "vit_jax", "info", str(tmp_path))
    document = json.loads(done.stdout.split("```json\n")[1].removesuffix("```\n"))
    assert document["config"]["total"]["steps"] == 2 and document["runs"][0]["versions"]


def test_a_folder_that_is_no_work_directory(tmp_path):
    with refused("config.json"):
        info.main([str(tmp_path)])
    with refused():
        info.main([str(tmp_path), str(tmp_path)])
