"""Shows how models scale: trains a grid of models, data and durations, and compares them.

    vit-jax study --config configs/vit_digits.py --workdir runs/study --slots=2 \\
      --config.model.width=32,64 --config.input.subset_fraction=0.1,0.3,1 \\
      --config.total.epochs=10,30

Commas separate the values of an axis, as in a sweep; any field may be one. Accuracy, loss or
whatever the config evaluates is set against exaFLOPs and against examples, with the best model for
a budget and scaling laws. --dry_run tells what each training costs. The same command again goes on.
"""

from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.core.errors import ErrorCollector, UserError, nearest
from vit_jax.core.screen import format_significant
from vit_jax.probes import scaling_law
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.study import page, points, results
from vit_jax.tools.lab.study.points import Cost, StudyPoint
from vit_jax.tools.lab.study.results import StudyResult
from vit_jax.tools.lab.sweep import grid, progress
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import CONFIG, Point, SweepGrid
from vit_jax.tools.lab.sweep.progress import PointProgress
from vit_jax.tools.lab.sweep.run import TrainingsFailed
from vit_jax.tools.lab.sweep.slots import SweepOptions

DEFAULT_LAW = "M2"
TRAININGS = "trainings"  # the sweep's folder, in the study's


class Study(NamedTuple):
    """A requested study.

    Attributes:
      grid: the config file, what all trainings share, and the lists.
      metric: what stands for a training's result; None: as a sweep chooses it.
      law: the form of the scaling laws; None: DEFAULT_LAW, where there are points enough.
      budgets: in exaFLOPs, for which the best model is told.
    """

    grid: SweepGrid
    metric: str | None = None
    law: str | None = None
    budgets: tuple[float, ...] = ()


def check(request: Study) -> None:
    """Raises UserError if it is wrong in itself."""
    if not request.grid.axes:
        raise UserError(
            "The grid is empty: it is a single training. Give values with commas between them, "
            "such as --config.model.name=ViT-Ti/16,ViT-S/16 --config.input.subset_fraction=0.1,1 "
            "--config.total.epochs=10,30."
        )
    if request.law is not None and request.law not in scaling_law.PARAMETERS:
        raise UserError(f"--law={request.law}: {nearest(request.law, scaling_law.PARAMETERS)}")
    for budget in request.budgets:
        if not 0 < budget < float("inf"):
            raise UserError(f"--budget={budget:g}: give exaFLOPs, numbers above 0.")


def study(folder: epath.Path, request: Study, options: SweepOptions) -> StudyResult:
    """Trains what is left of the grid in `folder`, and prints the results.

    The folder gets trainings/, which is a sweep, results.json, results.csv, results.html and two
    pictures. Called again with the same, or a longer, grid it goes on.

    Raises:
      UserError: grid, data or models are wrong, before any training; or there is no such metric.
      TrainingsFailed: some trainings have failed; the others are done, and the results written.
      Preempted: on a signal; what ran has saved.
    """
    all_points, known, rows = _begin(folder, request)
    failed = None
    with workdir_lock.lock_for_process(folder):
        if any(row.state != "finished" for row in rows):
            errors = ErrorCollector()
            sweeps.check_values(request.grid, folder / TRAININGS, errors)
            errors.raise_all()
            try:
                sweeps.sweep(folder / TRAININGS, request.grid, options)
            except TrainingsFailed as error:
                failed = error
        rows = progress.read_rows(all_points, folder / TRAININGS)
        metric = request.metric or progress.choose_metric(rows)
        config = request.grid.common.get(CONFIG) or ", ".join(request.grid.axes[CONFIG])
        found = points.collect(rows, known)
        result = results.analyse(config, found, metric, request.law or DEFAULT_LAW, request.budgets)
        workdir.make(folder)
        for each in page.pictures(result):
            workdir.save(folder / f"{each.name}.png", each.data)
        html = page.page(folder.name, result)
        sweeps.save_results(folder, results.as_json(result), results.table(result), html)
    print(*results.lines(result), sep="\n")
    print(f"saved    {folder / sweeps.HTML_FILE}")
    if failed:
        raise failed
    return result


def dry_run(folder: epath.Path, request: Study, options: SweepOptions) -> None:
    """Shows what each training costs, and its command. Reads data only where a size is missing."""
    _begin(folder, request)
    sweeps.dry_run(folder / TRAININGS, request.grid, options)


def _begin(
    folder: epath.Path, request: Study
) -> tuple[list[Point], dict[str, Cost], list[PointProgress]]:
    """Prints the costs of all points; returns the points, their costs and their progress."""
    check(request)
    grid.check_folder(folder, "study")
    sweeps.use_cpu_only()
    all_points, _ = grid.add_points(folder / TRAININGS, request.grid)
    if request.metric is not None:
        sweeps.check_metric(request.metric, all_points)
    known = points.costs(all_points)
    rows = progress.read_rows(all_points, folder / TRAININGS)
    found = points.collect(rows, known)
    print(*results.cost_lines(found), sep="\n")
    total = sum(known[row.point.name].exaflops for row in rows)
    left = sum(known[row.point.name].exaflops for row in rows if row.state != "finished")
    total_flops, left_flops = map(format_significant, (total, left))
    print(f"study    {len(rows)} trainings, {total_flops} exaFLOPs; {left_flops} are left to do")
    _check_law(request.law, found)
    return all_points, known, rows


def _check_law(law: str | None, found: Sequence[StudyPoint]) -> None:
    if law is not None and len(found) < scaling_law.PARAMETERS[law]:
        raise UserError(
            f"--law={law} has {scaling_law.PARAMETERS[law]} parameters, and the study has "
            f"{progress.count_of(len(found))} that differ in more than the seed. Give longer lists "
            "of values, or leave out --law: the best models for a budget need none."
        )


FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    """The command."""
    folder, options = sweeps.read_flags("give the study a folder of its own: runs/study")
    launched = options.launcher is not None
    request = Study(
        grid.from_config(FLAGS.config, FLAGS.config_override, launched=launched),
        FLAGS.metric,
        FLAGS.law,
        tuple(map(_budget, FLAGS.budget)),
    )
    sweeps.run_or_show(study, dry_run, folder, request, options)


def _budget(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"--budget={text}: give exaFLOPs, such as 0.1,1.") from error


if __name__ == "__main__":
    command.define_config(configs.fields)
    sweeps.define_flags(
        "Folder of the study, with all of its trainings.",
        "Show costs and commands, and train nothing.",
    )
    flags.DEFINE_string(
        "metric", None, "To compare by, such as test/accuracy; default: by what was evaluated."
    )
    flags.DEFINE_string(
        "law", None, "The scaling law to fit: M1, M2, M3, M4 or saturating; default: M2."
    )
    flags.DEFINE_list("budget", [], "ExaFLOPs to name the best model for, such as 0.1,1.")
    command.run(main)
