"""`vit-jax COMMAND` is `python -m vit_jax COMMAND`."""

import pytest

from tests.messages import failed
from vit_jax import __version__

CALL = "import sys; from vit_jax.__main__ import main; sys.argv[0] = 'vit-jax'; main()"
HEAVY = "print(sorted({'jax', 'flax', 'absl', 'numpy'}.intersection(sys.modules)))"


@pytest.fixture
def call(run_python):
    return lambda *arguments: run_python("-c", CALL, *arguments)


def test_without_a_command_it_lists_them_and_imports_nothing(run_python):
    done = run_python("-c", f"{CALL}; {HEAVY}", fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  train       Trains a model.\n" in done.stdout
    assert done.stdout.endswith("\n[]\n")
    assert run_python("-m", "vit_jax", "--help", fresh=True).stdout + "[]\n" == done.stdout


def test_version_and_unknown_commands(call):
    assert call("--version").stdout == f"vit_jax {__version__}\n"
    done = call("trian", "--config=x")
    failed(done, "trian", "'train'")


def test_help_and_mistakes_are_those_of_the_module(call, run_python):
    by_module = run_python("-m", "vit_jax.tools.look.preview", "--help")
    done = call("preview", "--help")
    assert (done.returncode, done.stdout) == (0, by_module.stdout)
    done = call("plan")
    failed(done, "--config", "vit-jax plan --help")
