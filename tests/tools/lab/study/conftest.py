"""Studies whose trainings are those of the sweep's fake trainer."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath

from vit_jax.tools.lab.study import run
from vit_jax.tools.lab.study.run import Study
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep.options import SweepOptions

REPOSITORY = Path(__file__).parents[4]
FAKE = [sys.executable, str(REPOSITORY / "tests" / "tools" / "lab" / "sweep" / "fake_train.py")]
DIGITS = str(REPOSITORY / "configs" / "vit_digits.py")
AXES = ("--config.model.width=32,64", "--config.input.subset_fraction=0.5,1")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Studies of digits whose trainings end as prescribed; data are not looked at before them.

    `world.fate("model.width=32,...", "1")`: how its first start ends; `world.study(*arguments)`;
    `world.said`: lines of the last; `world.starts()`: names started, in order.
    """
    fate = tmp_path / "fate"
    fate.mkdir()
    monkeypatch.setenv("FATE", str(fate))
    monkeypatch.setattr(run.preflight, "look", lambda *_: None)
    made = SimpleNamespace(folder=epath.Path(tmp_path / "study"), said=[])

    def asked(*arguments, **fields):
        # The fake's config.json is not the config that the command would have.
        given = ["--config", DIGITS, "--allow_config_change", "--config.optim.lr=1e-3"]
        return Study(grid.parse([*given, *arguments]), **fields)

    def study(*arguments, options=None, **fields):
        made.said = []
        return run.study(
            made.folder,
            asked(*(arguments or AXES), **fields),
            SweepOptions(**(options or {"slots": 4})),
            trainer=FAKE,
            say=made.said.append,
        )

    def starts():
        file = fate / "starts"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    made.study, made.asked, made.starts = study, asked, starts
    made.fate = lambda name, words: (fate / name).write_text(words)
    return made
