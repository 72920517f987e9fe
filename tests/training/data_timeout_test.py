"""A disk that hangs during a run: the command ends, and names the file and host."""

import socket

import numpy as np
import pytest
from PIL import Image

# Once the folder is listed, a named pipe without a writer replaces an image.
PROGRAM = """
import os, runpy, sys
from vit_jax.data.sources.image_folder import ImageFolder

listed = ImageFolder.__init__

def list_then_hang(self, data_dir, split, **options):
    listed(self, data_dir, split, **options)
    if split == os.environ["HANGS"]:
        os.unlink(self._paths[2])
        os.mkfifo(self._paths[2])
        print("pipe", self._paths[2])

ImageFolder.__init__ = list_then_hang
runpy.run_module("vit_jax.train", run_name="__main__", alter_sys=True)
"""

CONFIG = """
def get_config(arg=None):
    return {
        "model": {"name": "ViT-Ti/4", "depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2},
        "input": {"source": "image_folder", "preprocess": "decode|resize(8)", "batch_size": 4,
                  "timeout_secs": 10},
        "total": {"steps": 3},
        "evals": {"val": {"split": "val", "preprocess": "decode|resize(8)"}},
        "log": {"tensorboard": False},
    }
"""


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_command_ends_and_names_file_and_host(tmp_path, run_python, split):
    for folder in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(3):
            image = Image.fromarray(np.full((8, 8, 3), 60 * i, np.uint8))
            image.save(tmp_path / folder / f"{i}.png")
    (tmp_path / "config.py").write_text(CONFIG)
    done = run_python(
        "-c", PROGRAM, "--config", str(tmp_path / "config.py"), "--workdir", str(tmp_path / "run"),
        f"--config.input.data_dir={tmp_path}",
        HANGS=split,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (pipe,) = [line for line in done.stdout.splitlines() if line.startswith("pipe ")]
    assert f"{pipe.removeprefix('pipe ')} (example 2), for " in done.stderr
    assert socket.gethostname() in done.stderr
    assert "input.timeout_secs" in done.stderr
    assert "Traceback" not in done.stderr
