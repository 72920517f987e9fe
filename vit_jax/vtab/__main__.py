"""Runs VTAB-1k: fine-tunes weights on each of its 19 tasks, and gives the means of their groups.

    python -m vit_jax.vtab --checkpoint WEIGHTS --config configs/vtab.py --data TFDS \\
      --workdir runs/vtab --config.optim.lr=0.003,0.01,0.03

Each task is a transfer of its own (python -m vit_jax.transfer), by the benchmark's splits: commas
separate the values to choose from, on 200 of the thousand examples. What data are missing is told
before anything starts. The same command again goes on.
"""

from absl import flags

from vit_jax import config as configs
from vit_jax.core import command

if __name__ == "__main__":  # --help and a mistake do not wait for the imports below
    command.define_config(configs.fields())
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or weights; or none."
    )
    flags.DEFINE_string("data", None, "The folder of TFDS, with cifar100, clevr and so on in it.")
    flags.DEFINE_string("workdir", None, "Folder of the run, with a transfer for each task.")
    flags.DEFINE_list("tasks", [], "Only these, such as cifar100,clevr_count: without all means.")
    flags.DEFINE_list("leave_out", [], "All tasks but these, whose data are not there.")
    flags.DEFINE_integer("seeds", 3, "So many trainings for each test, whose mean is the result.")
    flags.DEFINE_integer("choose_seeds", 1, "So many trainings of each point to choose from.")
    flags.DEFINE_integer("slots", 1, "So many trainings, or launchers, at a time.", lower_bound=1)
    flags.DEFINE_string("launcher", None, "Makes each training a job, as vit_jax.sweep does.")
    flags.DEFINE_string(
        "slot_variable",
        None,
        "Environment variable that gets the slot's number, from 0: CUDA_VISIBLE_DEVICES gives each "
        "training a GPU of its own.",
    )
    flags.DEFINE_integer(
        "max_restarts",
        5,
        "So often in a row a training is started again without a newer checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_bool("retry_failed", False, "Start trainings that have failed again.")
    flags.DEFINE_bool("json", False, "The result as one JSON object.")
    flags.DEFINE_bool("dry_run", False, "Check everything, show the commands, and train nothing.")
    flags.mark_flags_as_required(["checkpoint", "workdir", "data"])
    command.parse()

import contextlib
import os
import sys

from etils import epath

from vit_jax.core.errors import UserError
from vit_jax.sweep import run as sweeps
from vit_jax.sweep.run import SweepOptions
from vit_jax.vtab import run
from vit_jax.vtab.run import VtabRun

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    for name in ("workdir", "data"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is empty: give a folder.")
    if FLAGS.launcher is not None:
        sweeps.launcher_words(FLAGS.launcher)  # before a folder is made
    folder = epath.Path(FLAGS.workdir).expanduser()
    asked = VtabRun(
        FLAGS.checkpoint,
        FLAGS.config,
        tuple(FLAGS.config_override),
        FLAGS.data,
        tuple(FLAGS.tasks),
        tuple(FLAGS.leave_out),
        FLAGS.seeds,
        FLAGS.choose_seeds,
    )
    options = SweepOptions(
        os.path.basename(os.path.normpath(FLAGS.workdir)),
        slots=FLAGS.slots,
        launcher=FLAGS.launcher,
        slot_variable=FLAGS.slot_variable,
        max_restarts=FLAGS.max_restarts,
        retry_failed=FLAGS.retry_failed,
    )
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        if FLAGS.dry_run:
            run.dry_run(folder, asked, options)
            return
        run.vtab(folder, asked, options)
    if FLAGS.json:
        print((folder / run.JSON_FILE).read_text(), end="")


if __name__ == "__main__":
    command.run(main)
