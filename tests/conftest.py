"""Fixtures for all tests: a tiny run, and Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax import config as configs

REPOSITORY = Path(__file__).parents[1]

# A ViT that compiles in a second or two, on images that need no files.
TINY_RUN = {
    "model": {"name": "ViT-Ti/4", "depth": 2, "width": 16, "mlp_dim": 32, "heads": 2},
    "input": {
        "source": "synthetic",
        "num_examples": 64,
        "num_classes": 4,
        "preprocess": "decode|resize(8)",
        "batch_size": 16,
    },
    "optim": {"lr": 1e-3, "warmup_steps": 2},
    "total": {"steps": 6},
    "log": {"every_steps": 1, "tensorboard": False},
}


@pytest.fixture
def tiny_run():
    """`tiny_run("optim.lr=1", ...)`: a RunConfig of a run that takes seconds."""
    return lambda *overrides: configs.resolve(TINY_RUN, overrides)


@pytest.fixture
def run_python():
    """`run_python("-c", code, devices=8)`: a finished process that imports this package."""

    def run(*arguments: str, devices: int = 1, timeout_secs: int = 300, **env: str):
        environment = os.environ | {
            "PYTHONPATH": str(REPOSITORY),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            **env,
        }
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=REPOSITORY,
            timeout=timeout_secs,
            check=False,
        )

    return run


def pytest_addoption(parser):
    parser.addoption(
        "--regenerate_goldens", action="store_true", help="Write the golden files anew."
    )
