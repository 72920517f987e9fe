"""Real trainings: two sizes of a ViT on two fractions of digits."""

import json

import pytest
from etils import epath

from vit_jax.tools.lab.study import run
from vit_jax.tools.lab.study.run import Study
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep.slots import SweepOptions

TINY = [
    "--config.total.epochs=none", "--config.total.steps=30", "--config.model.depth=1",
    "--config.optim.warmup_epochs=none", "--config.log.tensorboard=false",
    "--config.checkpoint.every_steps=30", "--config.evals.test.every_steps=none",
]  # fmt: skip


@pytest.mark.slow
def test_two_models_and_two_fractions(tmp_path, preloaded_server):
    digits = ["--config", "configs/vit_digits.py", *TINY]
    axes = ["--config.model.width=16,64", "--config.input.subset_fraction=0.3,1"]
    asked = Study(grid.parse([*digits, *axes]), law="M1", budgets=(1e-7,))
    folder = epath.Path(tmp_path / "study")
    python = preloaded_server().write_python(tmp_path / "python")
    trainer = [str(python), "-m", "vit_jax.train"]
    made = run.study(folder, asked, SweepOptions(slots=2, trainer=trainer))
    assert [each.state for each in made.points] == ["finished"] * 4
    # A training that has finished said what its plan says.
    metrics = folder / run.TRAININGS / "model.width=64,input.subset_fraction=1" / "metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert made.points[-1].cost.examples_seen == last["step"] * 128 == 30 * 128
    assert made.points[-1].numbers["test/accuracy"] > 0.15
