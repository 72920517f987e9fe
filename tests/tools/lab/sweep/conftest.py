"""A sweep of a fake trainer with prescribed outcomes."""

import json
import time
from types import SimpleNamespace

import pytest
from etils import epath

from tests.tools.lab.conftest import DIGITS, FAKE
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep import run as sweeps

GRID = [
    *("--config", DIGITS, "--allow_config_change"),
    *("--config.optim.lr=1e-3,3e-3", "--config.seed=0,1"),
]
PROGRAM = """
import json, sys
from etils import epath
from vit_jax.core import command
from vit_jax.tools.lab.sweep import grid, run
folder, arguments, options = json.loads(sys.argv.pop())
command.run(lambda _: run.sweep(
    epath.Path(folder), grid.parse(arguments), run.SweepOptions(**options)))
"""


@pytest.fixture
def world(tmp_path, fate, start_python):
    """A sweep of two learning rates and two seeds, whose trainings end as prescribed.

    `world.fate("optim.lr=1e-3,seed=0", "75 0")`: outcomes of its first two starts;
    `world.sweep(slots=2)` runs it here, `world.start(slots=2)` in a process; `world.starts()`:
    names started, in order.
    """
    folder = epath.Path(tmp_path / "lr")

    def run(*arguments, **options):
        asked = grid.parse(arguments or GRID)
        return sweeps.sweep(folder, asked, sweeps.SweepOptions(trainer=FAKE, **options))

    def start(**options):
        given = json.dumps([str(folder), GRID, options | {"trainer": FAKE}])
        output = tmp_path / f"output{time.monotonic_ns()}"
        process = start_python(output, "-c", PROGRAM, given, FATE=str(fate.folder))
        process.said = output.read_text
        return process

    made = SimpleNamespace(folder=folder, home=fate.folder, fake=FAKE, sweep=run, start=start)
    made.starts, made.fate = fate.starts, fate
    return made
