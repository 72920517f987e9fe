import json
import re

from flax import nnx

import vit_jax
from tests.messages import refused
from tests.workdirs import make_workdir
from vit_jax import models, weights
from vit_jax.run import info
from vit_jax.train import train

__all__ = ["make_workdir"]


def test_versions_devices_and_settings(run_python):
    out = run_python("-m", "vit_jax", "info", MALLOC_ARENA_MAX="3").stdout
    assert [line.split(":")[0] for line in out.splitlines()] == [
        *("- versions", "- system", "- devices", "- settings")
    ]
    assert (
        f"vit_jax {vit_jax.__version__}" in out and "jax 0." in out and "MALLOC_ARENA_MAX=3" in out
    )


def test_a_run_on_one_screen(tiny_run, tmp_path, run_python):
    options = ("total.steps=4", "log.every_steps=1", "checkpoint.every_steps=2")
    train(tiny_run(*options), tmp_path)
    file = tmp_path / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    speed = 2 * rows[0]["speed/images_per_second"]
    for row, accuracy in zip(rows, (0.1, 0.4, 0.3, 0.2), strict=True):
        row |= {"val/accuracy": accuracy, "speed/images_per_second": speed, "speed/input_wait": 0.5}
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = info.describe_path(str(tmp_path))
    assert len(text.splitlines()) < 20
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line)
    assert lines["step"].startswith("4 of 4")
    assert lines["best"] == f"step 2, by val/accuracy 40.00%: {tmp_path}@2"
    assert f"saved    {tmp_path}@2, " in text and "KiB, val/accuracy 20.00%" in lines["saved"]
    parts = r"50% of it waiting for images, (0:\d\d) compiling, 0:00 evaluating, 0:00 saving"
    compiling = re.search(parts, lines["time"])
    assert compiling and rows[0]["speed/compiling_secs"] > 0 and "speed/saving_secs" in rows[2]
    assert lines["last"].split()[1:] == [
        "train/accuracy", "train/learning_rate", "train/loss", "speed/images_per_second",
        "val/accuracy",
    ]  # fmt: skip
    assert lines["4"].endswith("20.00%")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    assert lines["run"] == f"{tmp_path}: {config['config']['model']['name']}, synthetic"
    config["config"]["model"] |= {"name": None}
    config["config"]["init"]["weights"] = "timm:a"
    file.write_text(json.dumps(config))
    assert info.describe_path(str(tmp_path)).startswith(f"run      {tmp_path}: timm:a, ")
    done = run_python("-m", "vit_jax", "info", "--json", str(tmp_path))
    document = json.loads(done.stdout)
    assert document["run"]["config"]["total"]["steps"] == 4 and document["run"]["runs"]
    assert document["rows"] == rows and "jax 0." in document["versions"]


def test_a_folder_of_runs_has_a_line_for_each(make_workdir, tmp_path):
    make_workdir("grid/lr=0.1", {10: {"test/accuracy": 0.5}, 20: {"test/accuracy": 0.25}})
    make_workdir("grid/lr=0.2", {})
    (tmp_path / "grid" / "sweep.json").write_text("{}")
    *table, empty, hint = info.describe_path(f"{tmp_path}/grid/").splitlines()
    assert [line.split() for line in table] == [
        ["run", "step", "of", "best", "by", "value"],
        ["lr=0.1", "20", "30", "10", "test/accuracy", "50.00%"],
        ["lr=0.2", "0", "30", "-", "-", "-"],
    ]
    assert not empty and f"vit-jax report {tmp_path}/grid/*/ " in hint
    assert set(info._document(str(tmp_path / "grid"))["runs"]) == {
        f"{tmp_path}/grid/lr=0.{n}" for n in (1, 2)
    }


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


def test_a_folder_that_is_neither(tmp_path, run_python):
    with refused(str(tmp_path)):
        info.describe_path(str(tmp_path))
    done = run_python("-m", "vit_jax", "info", str(tmp_path), str(tmp_path))
    assert done.returncode == 1 and f"{tmp_path} {tmp_path}" in done.stderr
