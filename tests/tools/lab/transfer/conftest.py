"""A transfer of digits whose trainings are those of the sweep's fake trainer."""

from types import SimpleNamespace

import pytest
from etils import epath

from tests.tools.lab.conftest import DIGITS, FAKE
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep.slots import SweepOptions
from vit_jax.tools.lab.transfer import run as transfers
from vit_jax.tools.lab.transfer.task import Splits, TransferTask

SPLITS = Splits("train", "train[0:1293]", "train[1293:1437]")


@pytest.fixture
def task():
    """`task("--config.optim.lr=1e-3,3e-3", seeds=2)`: a task, by default from scratch."""

    def make(*arguments, config=DIGITS, checkpoint="none", **fields):
        # The fake's config.json is not the config that the command would have.
        asked = grid.parse(["--config", config, "--allow_config_change", *arguments])
        return TransferTask(checkpoint, asked, **fields)

    return make


@pytest.fixture
def world(tmp_path, monkeypatch, fate, task, capsys):
    """Transfers whose trainings end as prescribed; nothing is looked at before them.

    `world.fate("choose", "optim.lr=1e-3", "75 0")`: outcomes of its first two starts;
    `world.transfer("--config.optim.lr=1e-3,3e-3", seeds=2)`; `world.said`: lines of the last;
    `world.starts()`: names started, in order.
    """
    monkeypatch.setattr(transfers, "check_all", lambda *_: (SPLITS, []))
    made = SimpleNamespace(folder=epath.Path(tmp_path / "transfer"), said=[])

    def transfer(*arguments, options=None, **fields):
        capsys.readouterr()
        given = task(*arguments, **fields)
        of_sweep = SweepOptions("transfer", trainer=FAKE, **(options or {"slots": 4}))
        result = transfers.transfer(made.folder, given, of_sweep)
        made.said = capsys.readouterr().out.splitlines()
        return result

    made.transfer, made.starts, made.fate = transfer, fate.starts, fate
    return made
