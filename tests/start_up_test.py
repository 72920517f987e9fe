"""What commands import before they can say that a flag or a config is wrong: not JAX.

JAX, Flax, Orbax and TensorFlow take seconds. benchmarks/start_up.py measures the times.
"""

import pytest

from tests.commands_test import COMMANDS

HEAVY = ("jax", "flax", "optax", "orbax", "tensorstore", "tensorflow", "clu")
RUN = f"""
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    print(end.code, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(run_python, command):
    done = run_python("-c", RUN, "vit_jax", command, "--help", fresh=True)
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize("command", ["train", "evaluate", "preview", "plan", "study", "transfer"])
def test_a_mistake_in_a_config_is_said_before_anything_heavy_is_imported(run_python, command):
    flags = {"train": ["--workdir=/nowhere"], "evaluate": ["--checkpoint=x"], "plan": []}
    flags["study"] = flags["train"]
    flags["transfer"] = [*flags["train"], *flags["evaluate"]]
    given = [*flags.get(command, ["--output=a.png"]), "--config=configs/vit_digits.py"]
    done = run_python("-c", RUN, "vit_jax", command, *given, "--config.optim.lrr=1", fresh=True)
    assert done.stderr.startswith("error: config has no field optim.lrr. Did you mean 'lr'?")
    assert done.stderr.endswith("\n1 []\n")
    if command == "train":  # a positional argument, too
        done = run_python("-c", RUN, "vit_jax", "train", *given, "typo", fresh=True)
        assert done.stderr == "error: Takes flags only, got 'typo': is a -- missing?\n1 []\n"


def test_weights_of_other_projects_are_read_without_orbax(run_python):
    code = "from vit_jax import models, weights; import sys; print(*sorted(sys.modules))"
    imported = run_python("-c", code, fresh=True).stdout.split()
    assert "flax" in imported
    assert not {"orbax", "tensorstore", "tensorflow", "PIL"}.intersection(imported)
