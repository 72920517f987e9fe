"""Evaluation of a run that goes on elsewhere: each checkpoint once, as it appears."""

import time
from collections.abc import Callable

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.core.screen import Screen
from vit_jax.run.info import last_step
from vit_jax.store import runs, workdir
from vit_jax.store.metrics import FOLLOWED_FILE, LARGEST_STEP, MetricsFile

POLL_SECS = 10.0


def follow(
    folder: epath.Path,
    evaluate: Callable[[epath.Path], dict[str, float]],
    screen: Screen,
    *,
    poll_secs: float = POLL_SECS,
) -> None:
    """Evaluates the checkpoints of a work directory until its run has ended.

    Rows go to a file of their own there, since the run's is written by the run; steps that have one
    are not evaluated again. A checkpoint that the run deletes before its turn is left out.

    evaluate: a step's folder -> numbers by "<evaluation>/<number>".
    UserError for a folder that is not a work directory, or is not there any more.
    """
    _check_exists(folder)
    file = MetricsFile(folder / FOLLOWED_FILE)
    file.truncate_after(LARGEST_STEP)  # a row that a kill cut short
    done = {row["step"] for row in file.rows()}
    while True:
        end = _end(folder)  # before looking for checkpoints: the last is not missed
        for step in workdir.steps(folder / "checkpoints"):
            if step in done:
                continue
            done.add(step)
            checkpoint = folder / "checkpoints" / str(step)
            try:
                numbers = evaluate(checkpoint)
            except (UserError, OSError, ValueError):
                if checkpoint.exists():
                    raise
                _check_exists(folder)
                screen.say(f"left out step {step:,}: the run has deleted its checkpoint")
                continue
            _check_exists(folder)  # or a deleted one would be there again
            file.write(step, numbers)
        file.flush()
        if end is not None and end in done:
            return
        time.sleep(poll_secs)


def _end(folder: epath.Path) -> int | None:
    """The last step of a run, once it is saved; None: it goes on, or is to be resumed."""
    _check_exists(folder)
    last = last_step(runs.read(folder, folder.name))
    return last if last in workdir.steps(folder / "checkpoints") else None


def _check_exists(folder: epath.Path) -> None:
    if not (folder / workdir.CONFIG_FILE).exists():
        rule = "is not, or no longer, the work directory of a run, which has a config.json."
        raise UserError(rule, field="--follow", value=folder)
