"""Runs VTAB-1k: fine-tunes weights on each of its 19 tasks, and gives the means of their groups.

    vit-jax vtab --checkpoint WEIGHTS --config configs/vtab.py --data TFDS \\
      --workdir runs/vtab --config.optim.lr=0.003,0.01,0.03

Each task is a transfer of its own (vit-jax transfer), by the benchmark's splits: commas
separate the values to choose from, on 200 of the thousand examples. What data are missing is told
before anything starts. The same command again goes on.
"""

import contextlib
import os
import sys

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.options import define_flags, of_flags
from vit_jax.tools.lab.vtab import run
from vit_jax.tools.lab.vtab.run import VtabRun

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
    options = of_flags(os.path.basename(os.path.normpath(FLAGS.workdir)))
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        if FLAGS.dry_run:
            run.dry_run(folder, asked, options)
            return
        run.vtab(folder, asked, options)
    if FLAGS.json:
        print((folder / run.JSON_FILE).read_text(), end="")


if __name__ == "__main__":
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
    define_flags()
    flags.DEFINE_bool("json", False, "The result as one JSON object.")
    flags.DEFINE_bool("dry_run", False, "Check everything, show the commands, and train nothing.")
    flags.mark_flags_as_required(["checkpoint", "workdir", "data"])
    command.run(main)
