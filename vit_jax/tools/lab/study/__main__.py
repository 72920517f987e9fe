"""Shows how models scale: trains a grid of models, data and durations, and compares them.

    vit-jax study --config configs/vit_digits.py --workdir runs/study --slots=2 \\
      --config.model.width=32,64 --config.input.subset_fraction=0.1,0.3,1 \\
      --config.total.epochs=10,30

Commas separate the values of an axis, as in a sweep; any field may be one. Accuracy, loss or
whatever the config evaluates is set against exaFLOPs and against examples, with the best model for
a budget and scaling laws. --dry_run tells what each training costs. The same command again goes on.
"""

import contextlib
import os
import sys

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import cloud, command
from vit_jax.core.errors import UserError
from vit_jax.tools.lab.study import results
from vit_jax.tools.lab.study import run as studies
from vit_jax.tools.lab.study.run import Study
from vit_jax.tools.lab.sweep import grid
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.options import define_flags, of_flags
from vit_jax.tools.lab.sweep.run import PointsFailed

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    if not FLAGS.workdir:
        raise UserError("--workdir is empty: give the study a folder of its own: runs/study.")
    if FLAGS.launcher is not None:
        sweeps.launcher_words(FLAGS.launcher)  # before a folder is made
    folder = epath.Path(FLAGS.workdir).expanduser()
    if cloud.is_remote(folder) and FLAGS.launcher is None:
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be. Jobs (--launcher) need none."
        )
    asked = Study(
        grid.of_config(FLAGS.config, FLAGS.config_override),
        FLAGS.metric,
        FLAGS.law,
        tuple(map(_budget, FLAGS.budget)),
    )
    options = of_flags(os.path.basename(os.path.normpath(FLAGS.workdir)))
    with contextlib.redirect_stdout(sys.stderr) if FLAGS.json else contextlib.nullcontext():
        if FLAGS.dry_run:
            studies.dry_run(folder, asked, options)
            return
        failed = None
        try:
            studies.study(folder, asked, options)
        except PointsFailed as error:
            failed = error
    if FLAGS.json:
        print((folder / results.JSON_FILE).read_text(), end="")
    if failed:
        raise failed


def _budget(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"--budget={text}: give exaFLOPs, such as 0.1,1.") from error


if __name__ == "__main__":
    command.define_config(configs.fields())
    flags.DEFINE_string("workdir", None, "Folder of the study, with all of its trainings.")
    flags.DEFINE_string(
        "metric", None, "To compare by, such as test/accuracy; default: by what was evaluated."
    )
    flags.DEFINE_string(
        "law", None, "The scaling law to fit: M1, M2, M3, M4 or saturating; default: M2."
    )
    flags.DEFINE_list("budget", [], "ExaFLOPs to name the best model for, such as 0.1,1.")
    define_flags()
    flags.DEFINE_bool("json", False, "The results as one JSON object.")
    flags.DEFINE_bool("dry_run", False, "Show costs and commands, and train nothing.")
    flags.mark_flag_as_required("workdir")
    command.run(main)
