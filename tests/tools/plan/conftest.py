"""A process that runs the command."""

import jax
import pytest

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
PROGRAM = """
import contextlib, runpy, sys

sys.argv = ["plan", "--config", sys.argv[1], "--nocompile"]
with contextlib.suppress(SystemExit):
    runpy.run_module("vit_jax.tools.plan", run_name="__main__")
"""


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "config.py"
    file.write_text(CONFIG)
    return str(file)


@pytest.fixture(scope="session")
def process(config_file, run_python):
    """The output of `vit-jax plan --nocompile`."""
    done = run_python("-c", PROGRAM, config_file, fresh=True, devices=jax.device_count())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
