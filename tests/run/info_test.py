import json
import re

from flax import nnx

import vit_jax
from tests.messages import refused
from vit_jax import models, weights
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


def test_weights(tmp_path):
    fields = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2, "image_size": 8}
    model = models.create("ViT-Ti/4", num_classes=3, rngs=nnx.Rngs(0), **fields)
    loaded = weights.Loaded(model, "ViT-Ti/4", None, 0)
    for to in ("huggingface", "checkpoint"):  # both have a config.json of their own, or none
        weights.save(loaded, tmp_path / to, to)
        said = info.describe_path(str(tmp_path / to))
        assert said.startswith(f"The weights {tmp_path / to}: ViT-"), said
        assert said.endswith("947 parameters, images of 8 x 8 pixels, 3 classes.")


def test_devices_that_are_the_problem(run_python):
    done = run_python("-m", "vit_jax", "info", JAX_PLATFORMS="cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0
    devices = re.search(r"(?m)^- devices: error: (.*)$", done.stdout)
    assert devices and "AssertionError" in devices[1]  # JAX's, and the setting that it is about
    assert "- versions: " in done.stdout and "JAX_PLATFORMS=cuda" in done.stdout


def test_a_folder_that_is_neither(tmp_path, capsys):
    with refused(str(tmp_path)):
        info.main([str(tmp_path)])
    assert "- versions: " in capsys.readouterr().out
    with refused(f"{tmp_path} {tmp_path}"):
        info.main([str(tmp_path), str(tmp_path)])
