"""A transfer of digits whose trainings are those of the sweep's fake trainer."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath

from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep.options import SweepOptions
from vit_jax.tools.lab.transfer import protocol
from vit_jax.tools.lab.transfer.task import Splits, TransferTask

REPOSITORY = Path(__file__).parents[4]
FAKE = [sys.executable, str(REPOSITORY / "tests" / "tools" / "lab" / "sweep" / "fake_train.py")]
DIGITS = str(REPOSITORY / "configs" / "vit_digits.py")
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
def world(tmp_path, monkeypatch, task):
    """Transfers whose trainings end as prescribed; nothing is looked at before them.

    `world.fate("choose", "optim.lr=1e-3", "75 0")`: outcomes of its first two starts;
    `world.transfer("--config.optim.lr=1e-3,3e-3", seeds=2)`; `world.said`: lines of the last;
    `world.starts()`: names started, in order.
    """
    fate = tmp_path / "fate"
    fate.mkdir()
    monkeypatch.setenv("FATE", str(fate))
    monkeypatch.setattr(protocol.held_out, "look", lambda *_: (SPLITS, []))
    made = SimpleNamespace(folder=epath.Path(tmp_path / "transfer"), said=[])

    def transfer(*arguments, options=None, **fields):
        made.said = []
        given = task(*arguments, **fields)
        return protocol.transfer(
            made.folder,
            given,
            SweepOptions("transfer", **(options or {"slots": 4})),
            trainer=FAKE,
            say=made.said.append,
        )

    def starts():
        file = fate / "starts"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    made.transfer, made.starts = transfer, starts
    made.fate = lambda name, words: (fate / name).write_text(words)
    return made
