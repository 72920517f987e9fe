"""A loss, gradient or update that is not finite ends the run, and nothing of it is saved."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.run.parts import updates
from vit_jax.store import checkpoint_dir
from vit_jax.train import train


def test_a_non_finite_loss_stops_the_run_and_is_not_saved(tmp_path, tiny_run):
    config = tiny_run(
        "optim.lr=9e5", "optim.weight_decay=9e5", "optim.warmup_steps=none",
        "checkpoint.every_steps=1", "log.every_steps=100", "total.steps=50",
    )  # fmt: skip
    with pytest.raises(NonFiniteError, match=r"Step \d+: loss .*(nan|inf)"):
        train(config, tmp_path)
    for step in checkpoint_dir.steps(tmp_path / "checkpoints"):
        wanted = {"first_bad_step": jax.ShapeDtypeStruct((), np.int32)}
        saved = checkpoint_dir.read_some(tmp_path / "checkpoints" / str(step), wanted)
        assert not int(saved["first_bad_step"])


@pytest.fixture
def spoiled_batch(monkeypatch):
    """`spoiled_batch(4)`: makes the loss of that step's batch non-finite."""

    def spoil(step):
        update = updates.make_update

        def make(*arguments):
            good = update(*arguments)

            def bad(state, batch):
                weight = jnp.where(state.step + 1 == step, jnp.nan, batch["weight"])
                return good(state, batch | {"weight": weight})

            return bad

        monkeypatch.setattr(updates, "make_update", make)

    return spoil


@pytest.mark.slow
def test_a_spoiled_batch_can_be_skipped(tmp_path, tiny_run, spoiled_batch, capsys):
    spoiled_batch(4)
    never = train(tiny_run("input.skip_steps=4"), tmp_path / "never")  # encountered it
    config = tiny_run("checkpoint.every_steps=3", "log.every_steps=2")
    for _ in range(2):  # the same batch comes again
        with pytest.raises(NonFiniteError, match=r"Step 4: loss nan.*--config.input.skip_steps=4"):
            train(config, tmp_path / "run")
    assert checkpoint_dir.steps(tmp_path / "run" / "checkpoints") == [3]
    skipping = dataclasses.replace(config, input=dataclasses.replace(config.input, skip_steps=(4,)))
    state = train(skipping, tmp_path / "run")  # needs no --allow_config_change
    jax.tree.map(np.testing.assert_array_equal, state.params, never.params)
    assert "step 4 | its batch is left out" in capsys.readouterr().out
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["config"]["input"]["skip_steps"] == [4]
    assert written["runs"][-1]["config_changes"] == ["input.skip_steps: [] there, [4] here"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [(row["step"], "train/loss" in row) for row in rows] == [
        (2, True),
        (4, False),
        (6, True),
    ]
    with pytest.raises(UserError, match=r"input\.skip_steps: \[4\] there, \[\] here"):
        train(config, tmp_path / "run")
    with pytest.raises(UserError, match=r"input.skip_steps has 7, but total.\* amounts to 6 steps"):
        train(tiny_run("input.skip_steps=7"), tmp_path / "other")


def test_nothing_is_evaluated_after_a_non_finite_step(tmp_path, tiny_run, spoiled_batch, capsys):
    spoiled_batch(2)
    config = tiny_run(
        "log.every_steps=100", "evals.test.every_steps=3",
        "evals.test.preprocess=decode|resize(8)",
    )  # fmt: skip
    with pytest.raises(NonFiniteError, match="Step 2: "):
        train(config, tmp_path)
    assert "test: accuracy" not in capsys.readouterr().out
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_non_finite_update_stops_the_run_and_is_not_saved(tmp_path, tiny_run):
    """The head starts at zero, so the gradients below it are: Adam without eps divides 0 by 0."""
    config = tiny_run("optim.eps=0", "checkpoint.every_steps=1", "total.steps=2")
    with pytest.raises(NonFiniteError, match="an update that is not finite"):
        train(config, tmp_path)
    assert not checkpoint_dir.steps(tmp_path / "checkpoints")
