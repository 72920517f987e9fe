"""Says what trained weights are worth on other data, without looking at the test before the end:

    vit-jax transfer --checkpoint WEIGHTS --config configs/finetune.py:cifar10 \\
      --workdir runs/transfer --config.input.data_dir=data/cifar10 \\
      --config.optim.lr=0.001,0.003,0.01,0.03

Commas separate the values to choose from. Each is trained without a held-out part of the training
data and scored on that; the best is trained on all of it, once for each seed, and scored on the
test. --checkpoint=none does the same from scratch. The same command again goes on.
"""

import contextlib
import os
import sys
from typing import Any

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import cloud, command
from vit_jax.core.errors import UserError
from vit_jax.tools.lab.sweep import grid, run
from vit_jax.tools.lab.sweep.options import define_flags, of_flags
from vit_jax.tools.lab.transfer import protocol, results
from vit_jax.tools.lab.transfer.protocol import TrainingsFailed
from vit_jax.tools.lab.transfer.task import TransferTask

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    if not FLAGS.workdir:
        raise UserError("--workdir is empty: give the transfer a folder, such as runs/transfer.")
    if FLAGS.launcher is not None:
        run.launcher_words(FLAGS.launcher)  # before a folder is made
    folder = epath.Path(FLAGS.workdir).expanduser()
    if cloud.is_remote(folder) and FLAGS.launcher is None:
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be. Jobs (--launcher) need none."
        )
    given: dict[str, Any] = {
        name: FLAGS[name].value for name in TransferTask._fields if name != "grid"
    }
    task = TransferTask(**given, grid=grid.of_config(FLAGS.config, FLAGS.config_override))
    name = os.path.basename(os.path.normpath(FLAGS.workdir))
    options = of_flags(name)
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        if FLAGS.dry_run:
            protocol.dry_run(folder, task, options, print)
            return
        failed = None
        try:
            protocol.transfer(folder, task, options)
        except TrainingsFailed as error:
            failed = error
    if FLAGS.json:
        print((folder / results.JSON_FILE).read_text(), end="")
    if failed:
        raise failed


if __name__ == "__main__":
    command.define_config(configs.fields())
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or weights; or none."
    )
    flags.DEFINE_string("workdir", None, "Folder of the transfer, with all of its trainings.")
    flags.DEFINE_float(
        "held_out",
        None,
        "The part of the training split to choose by, a fraction or a number; default: 0.1.",
    )
    flags.DEFINE_string("choose_split", None, "Instead of --held_out: what to train on meanwhile.")
    flags.DEFINE_string("held_out_split", None, "Instead of --held_out: what to choose by.")
    flags.DEFINE_string("evaluation", None, "The config's evaluation of the test, if it has more.")
    flags.DEFINE_string("metric", "accuracy", "The number of that evaluation to choose by.")
    flags.DEFINE_bool("ema", False, "Choose by the EMA of the weights.")
    flags.DEFINE_integer("seeds", 3, "So many trainings for the test, whose mean is the result.")
    flags.DEFINE_integer("choose_seeds", 1, "So many trainings of each point to choose from.")
    define_flags()
    flags.DEFINE_bool("json", False, "The result as one JSON object.")
    flags.DEFINE_bool("dry_run", False, "Check everything, show the commands, and train nothing.")
    flags.mark_flags_as_required(["checkpoint", "workdir"])
    command.run(main)
