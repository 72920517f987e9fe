"""Studies whose trainings are those of the sweep's fake trainer."""

from types import SimpleNamespace

import pytest
from etils import epath

from tests.tools.lab.conftest import DIGITS, FAKE
from vit_jax.tools.lab.study import run
from vit_jax.tools.lab.study.run import Study
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.slots import SweepOptions

AXES = ("--config.model.width=32,64", "--config.input.subset_fraction=0.5,1")


@pytest.fixture
def world(tmp_path, monkeypatch, fate, capsys):
    """Studies of digits whose trainings end as prescribed; data are not looked at before them.

    `world.fate("model.width=32,...", "1")`: how its first start ends; `world.study(*arguments)`;
    `world.said`: lines of the last; `world.starts()`: names started, in order.
    """
    monkeypatch.setattr(sweeps, "check_values", lambda *_: None)
    made = SimpleNamespace(folder=epath.Path(tmp_path / "study"), said=[])

    def asked(*arguments, **fields):
        # The fake's config.json is not the config that the command would have.
        given = ["--config", DIGITS, "--allow_config_change", "--config.optim.lr=1e-3"]
        return Study(grid.parse([*given, *arguments]), **fields)

    def study(*arguments, options=None, **fields):
        capsys.readouterr()
        result = run.study(
            made.folder,
            asked(*(arguments or AXES), **fields),
            SweepOptions(**(options or {"slots": 4}), trainer=FAKE),
        )
        made.said = capsys.readouterr().out.splitlines()
        return result

    made.study, made.asked, made.starts, made.fate = study, asked, fate.starts, fate
    return made
