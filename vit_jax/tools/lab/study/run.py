"""Trains models of several sizes, on several numbers of images, and fits scaling laws.

    vit-jax study --config configs/vit_digits.py --workdir runs/study --slots=2 \\
      --config.model.width=32,64 --config.input.subset_fraction=0.1,0.3,1 \\
      --config.total.epochs=10,30

Commas separate the values of an axis, as in a sweep; any field may be one. Accuracy, loss or
whatever the config evaluates is set against exaFLOPs and against examples, with the best model for
a budget and scaling laws. --dry_run tells what each training costs. The same command again goes on.
"""

from typing import NamedTuple

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import ErrorCollector, reading
from vit_jax.core.screen import aligned, format_significant
from vit_jax.probes import scaling_law
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.study import page, points, results
from vit_jax.tools.lab.study.points import Cost
from vit_jax.tools.lab.study.results import StudyResult
from vit_jax.tools.lab.sweep import grid, progress
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import CONFIG, Point, SweepGrid
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.slots import SweepOptions

TRAININGS = "trainings"  # the sweep's folder, in the study's


class Study(NamedTuple):
    grid: SweepGrid  # the config file, what all trainings share, and the lists
    metric: str | None = None  # what stands for a training's result; None: as a sweep chooses it
    law: str = "M2"
    budgets: tuple[float, ...] = ()  # in exaFLOPs, for which the best model is told


def study(folder: epath.Path, request: Study, options: SweepOptions) -> StudyResult:
    """Trains what is left of the grid in `folder`, and prints the results.

    The folder gets trainings/, which is a sweep, results.json, results.csv, results.html and two
    pictures. Called again with the same, or a longer, grid it goes on.
    """
    all_points, known, rows = _begin(folder, request)
    failures: list[str] = []
    with workdir_lock.lock_for_process(folder):
        if any(row.state != "finished" for row in rows):
            errors = ErrorCollector()
            sweeps.check_values(request.grid, folder / TRAININGS, errors)
            errors.raise_all()
            failures = sweeps.sweep(folder / TRAININGS, request.grid, options).failures
        rows = progress.read_rows(all_points, folder / TRAININGS)
        metric = request.metric or progress.choose_metric(rows)
        found = points.collect(rows, known)
        config = request.grid.common.get(CONFIG) or ", ".join(request.grid.axes[CONFIG])
        result = results.analyse(config, found, metric, request.law, request.budgets)
        result = result._replace(failures=failures)
        workdir.make(folder)
        for each in page.pictures(result):
            workdir.save(folder / f"{each.name}.png", each.data)
        html = page.page(folder.name, result)
        sweeps.save_results(folder, results.as_json(result), results.table(result), html)
    sweeps.show_results(folder, results.lines(result))
    return result


def dry_run(folder: epath.Path, request: Study, options: SweepOptions) -> None:
    """Shows what each training costs, and its command. Reads data only where a size is missing."""
    _begin(folder, request)
    sweeps.dry_run(folder / TRAININGS, request.grid, options)


def _begin(
    folder: epath.Path, request: Study
) -> tuple[list[Point], dict[str, Cost], list[PointProgress]]:
    grid.check_folder(folder, "study")
    sweeps.use_cpu_only()
    all_points, _ = grid.add_points(folder / TRAININGS, request.grid)
    if request.metric is not None:
        sweeps.check_metric(request.metric, all_points)
    known = points.costs(all_points)
    rows = progress.read_rows(all_points, folder / TRAININGS)
    found = points.collect(rows, known)
    print(*aligned(results.HEAD, results.point_rows(found), left={0, 1, 6}), sep="\n")
    costs = [(row.state != "finished", known[row.point.name].exaflops) for row in rows]
    total = format_significant(sum(cost for _, cost in costs))
    left = format_significant(sum(cost for is_left, cost in costs if is_left))
    print(f"study    {len(rows)} trainings, {total} exaFLOPs; {left} are left to do")
    return all_points, known, rows


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    folder, options = sweeps.read_flags()
    with reading("--budget", ",".join(FLAGS.budget)):
        budgets = tuple(map(float, FLAGS.budget))
    request = Study(sweeps.read_grid(), FLAGS.metric, FLAGS.law, budgets)
    sweeps.run_or_show(study, dry_run, folder, request, options)


if __name__ == "__main__":
    command.define_config(configs.fields)
    sweeps.define_flags(
        "Folder of the study, with all of its trainings.",
        "Show costs and commands, and train nothing.",
    )
    sweeps.define_metric("compare")
    flags.DEFINE_enum("law", "M2", scaling_law.PARAMETERS, "The scaling law to fit.")
    flags.DEFINE_list("budget", [], "ExaFLOPs to name the best model for, such as 0.1,1.")
    flags.adopt_module_key_flags(sweeps)  # for --help
    command.run(main)
