"""Real trainings: the test is not read before the choice; a killed transfer goes on."""

import json
import os
import signal

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tests import preloaded
from tests.processes import wait_for
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep.slots import SweepOptions
from vit_jax.tools.lab.transfer import run as transfers
from vit_jax.tools.lab.transfer.task import TransferTask

CONFIG = """
def get_config(arg=None):
    return {
        "model": {"name": "ViT-Ti/4", "depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2},
        "input": {
            "source": "image_folder", "data_dir": "FOLDER", "preprocess": "decode|resize(8)",
            "batch_size": 8,
        },
        "optim": {"lr": 1e-3},
        "total": {"steps": 6},
        "evals": {"test": {"preprocess": "decode|resize(8)", "every_steps": 2}},
        "checkpoint": {"every_steps": 3, "best_metric": "test/accuracy"},
        "log": {"tensorboard": False},
    }
"""
STEPS = [
    "--config.total.epochs=none", "--config.total.steps=40", "--config.model.depth=1",
    "--config.optim.warmup_epochs=none", "--config.log.tensorboard=false",
    "--config.checkpoint.every_steps=10", "--config.log.every_steps=5",
]  # fmt: skip


@pytest.mark.slow
def test_the_test_is_not_read_before_the_choice(tmp_path, preloaded_server):
    """Its images cannot be decoded until the choice is made, and choosing works."""
    for split, number in (("train", 10), ("test", 2)):
        for name, colour in (("dark", 30), ("light", 220)):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(number):
                file = tmp_path / "images" / split / name / f"{i}.png"
                Image.fromarray(np.full((8, 8, 3), colour + i, np.uint8)).save(file)
    sealed = {file: file.read_bytes() for file in (tmp_path / "images" / "test").rglob("*.png")}
    for file in sealed:
        file.write_bytes(b"not an image")
    config = tmp_path / "tiny.py"
    config.write_text(CONFIG.replace("FOLDER", str(tmp_path / "images")))
    task = TransferTask(
        "none", grid.parse([f"--config={config}", "--config.optim.lr=1e-3,1e-2"]), seeds=1
    )
    folder = epath.Path(tmp_path / "transfer")
    python = preloaded_server().write_python(tmp_path / "python")
    trainer = [str(python), "-m", "vit_jax.train"]

    def transfer(**options):
        return transfers.transfer(folder, task, SweepOptions(trainer=trainer, **options))

    (why,) = transfer(slots=2).failures
    assert why.startswith("final/seed=0: ") and "/test/" in why
    chosen = json.loads((folder / "choice.json").read_text())["chosen"]
    assert json.loads((folder / "results.json").read_text())["test"] == {}
    for file, content in sealed.items():
        file.write_bytes(content)
    result = transfer(retry_failed=True)
    assert result.choice.chosen == chosen
    assert result.score.values["0"] >= 0


@pytest.mark.slow
def test_the_whole_of_it_killed_twice(tmp_path, run_python, start_python, preloaded_server):
    """Weights of a short run, digits, two rates, two seeds."""
    python = preloaded_server().write_python(tmp_path / "python")
    trained_by = {preloaded.EXECUTABLE: str(python)}
    digits = ["--config=configs/vit_digits.py", *STEPS]
    weights = tmp_path / "weights"
    done = run_python("-m", "vit_jax.train", f"--workdir={weights}", *digits)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "transfer"
    command = [
        *("-m", "vit_jax", "transfer", f"--checkpoint={weights}", f"--workdir={folder}", "--json"),
        *(*digits, "--config.optim.lr=1e-4,3e-3", "--seeds=2", "--config.init.head=reset"),
    ]
    for place in ("choose/optim.lr=3e-3", "final/seed=0"):
        process = start_python(tmp_path / "said", *command, **trained_by)
        wait_for(lambda place=place: (folder / place / "checkpoints" / "10").exists(), secs=300)
        os.kill(json.loads((folder / place / ".slot").read_text())["pid"], signal.SIGKILL)
        process.kill()
        process.wait()
    done = run_python(*command, timeout_secs=600, **trained_by)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["choice"]["chosen"] == {"optim.lr": "3e-3"}
    assert document["weights"] == f"{weights}/checkpoints/40"
    assert sorted(document["test"]["test/accuracy"]["values"]) == ["0", "1"]
    starts = {
        log.parent.name: log.read_text().count("--- started") for log in folder.glob("*/*/log.txt")
    }
    assert starts["optim.lr=1e-4"] == starts["seed=1"] == 1
    assert starts["seed=0"] <= 3
    for name in ("results.csv", "results.html", "choice.json"):
        assert (folder / name).exists()
