"""Trains a grid of configs: values separated by commas are its axes. For scripts/sweep.sh:

    scripts/sweep.sh --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \\
      --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

Arguments of vit_jax.train follow the --. Each point has a folder of its own below --workdir.
The same command again continues, and ends with the results: a table, results.csv, results.png.

--launcher="scripts/slurm.sh --nodes=1 --gpus=8" makes each point a job instead of a process here.
"""

import os

from absl import flags
from etils import epath

from vit_jax.core import cloud, command
from vit_jax.core.errors import UserError
from vit_jax.tools.lab.sweep import grid, run
from vit_jax.tools.lab.sweep.options import define_flags, of_flags

FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    if not FLAGS.workdir:
        raise UserError("--workdir is empty: give the sweep a folder of its own, such as runs/lr.")
    if FLAGS.launcher is not None:
        run.launcher_words(FLAGS.launcher)  # before a folder is made
    folder = epath.Path(FLAGS.workdir).expanduser()
    asked = grid.parse(arguments)
    name = FLAGS.name or os.path.basename(os.path.normpath(FLAGS.workdir))
    options = of_flags(name)._replace(follow=FLAGS.follow, metric=FLAGS.metric)
    if FLAGS.dry_run:
        run.dry_run(folder, asked, options)
        return
    if cloud.is_remote(folder) and options.launcher is None:
        raise UserError(
            f"--workdir={folder}: trainings of this machine need a folder on it, where their logs "
            "and locks can be. Jobs (--launcher) need none."
        )
    run.sweep(folder, asked, options)


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of the sweep, with one below it for each point.")
    flags.DEFINE_string("name", None, "Of jobs: NAME-1, NAME-2, ...; default: that of the folder.")
    define_flags()
    flags.DEFINE_bool("follow", True, "Wait until all jobs of --launcher have finished.")
    flags.DEFINE_string(
        "metric", None, "To sort by, such as test/accuracy; default: by what was evaluated."
    )
    flags.DEFINE_bool("dry_run", False, "Show the command of every point, and start none.")
    flags.mark_flag_as_required("workdir")
    command.run(main, positional=True, hint='Arguments of vit_jax.train follow " -- ".')
