"""A study from top to bottom: costs, checks, trainings as a sweep, frontiers and laws."""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from etils import epath

from vit_jax import config as configs
from vit_jax.core.errors import ErrorCollector, UserError, nearest
from vit_jax.probes import scaling_law
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.study import page, points, results
from vit_jax.tools.lab.study.cost import Cost, costs
from vit_jax.tools.lab.study.points import StudyPoint
from vit_jax.tools.lab.study.results import StudyResult
from vit_jax.tools.lab.sweep import definition, preflight, progress
from vit_jax.tools.lab.sweep import run as sweeps
from vit_jax.tools.lab.sweep.grid import CONFIG, Point, SweepGrid
from vit_jax.tools.lab.sweep.options import SweepOptions
from vit_jax.tools.lab.sweep.run import PointsFailed
from vit_jax.training.evals.table import KINDS
from vit_jax.training.state import EMA_ENDING

DEFAULT_LAW = "M2"
TRAININGS = "trainings"  # the sweep's folder, in the study's
Say = Callable[[str], None]


class Study(NamedTuple):
    """What is asked for.

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


def check(asked: Study) -> None:
    """UserError if it is wrong in itself."""
    if not asked.grid.axes:
        raise UserError(
            "The grid is empty: it is a single training. Give values with commas between them, "
            "such as --config.model.name=ViT-Ti/16,ViT-S/16 --config.input.subset_fraction=0.1,1 "
            "--config.total.epochs=10,30."
        )
    if asked.law is not None and asked.law not in scaling_law.PARAMETERS:
        raise UserError(f"--law={asked.law}: {nearest(asked.law, scaling_law.PARAMETERS)}")
    for budget in asked.budgets:
        if not 0 < budget < float("inf"):
            raise UserError(f"--budget={budget:g}: give exaFLOPs, numbers above 0.")


def study(
    folder: epath.Path,
    asked: Study,
    options: SweepOptions,
    *,
    trainer: Sequence[str] = (sys.executable, *sweeps.TRAIN),
    say: Say = print,
) -> StudyResult:
    """Trains what is left of the grid in `folder`, and says what it shows.

    The folder gets trainings/, which is a sweep, results.json, results.csv, results.html and two
    pictures. Called again with the same, or a longer, grid it goes on.

    Raises:
      UserError: grid, data or models are wrong, before any training; or there is no such metric.
      PointsFailed: some trainings have failed; the others are done, and the results written.
      Preempted: on a signal; what ran has saved.
    """
    check(asked)
    _check_folder(folder)
    every, known = _look(folder, asked)
    rows = [progress.look(each, folder / TRAININGS / each.name) for each in every]
    _check_law(asked.law, _tell_costs(rows, known, say))
    failed = None
    with workdir_lock.alone_in(folder):
        if any(row.state != "finished" for row in rows):
            _check_data(folder, asked.grid)
            try:
                sweeps.sweep(folder / TRAININGS, asked.grid, options, trainer)
            except PointsFailed as error:
                failed = error
        rows = [progress.look(each, folder / TRAININGS / each.name) for each in every]
        metric = asked.metric or progress.choose_metric(rows)
        config = asked.grid.common.get(CONFIG) or ", ".join(asked.grid.axes[CONFIG])
        found = points.collect(rows, known)
        made = results.result(config, found, metric, asked.law or DEFAULT_LAW, asked.budgets)
        workdir.make(folder)
        results.write(folder, made)
        page.write(folder, made)
    for line in results.lines(made):
        say(line)
    say(f"saved    {folder / page.FILE}")
    if failed:
        raise failed
    return made


def dry_run(folder: epath.Path, asked: Study, options: SweepOptions, say: Say = print) -> None:
    """Shows what each training costs, and its command. Reads data only where a size is missing."""
    check(asked)
    _check_folder(folder)
    every, known = _look(folder, asked)
    rows = [progress.look(each, folder / TRAININGS / each.name) for each in every]
    _check_law(asked.law, _tell_costs(rows, known, say))
    sweeps.dry_run(folder / TRAININGS, asked.grid, options)


def _check_folder(folder: epath.Path) -> None:
    """UserError if the folder is that of something else."""
    for file, what in ((workdir.CONFIG_FILE, "a training"), (definition.FILE, "a sweep")):
        if (folder / file).exists():
            raise UserError(f"{folder} belongs to {what}: give the study another --workdir.")


def _look(folder: epath.Path, asked: Study) -> tuple[list[Point], dict[str, Cost]]:
    """All points of the folder and the grid, and their costs."""
    preflight.leave_devices_alone()
    every, _ = definition.points(folder / TRAININGS, asked.grid)
    if asked.metric is not None:
        _check_metric(asked.metric, every)
    return every, costs(every)


def _check_metric(metric: str, every: Sequence[Point]) -> None:
    """UserError if no training will have such a number."""
    sections = [configs.load(point.config, point.overrides).evals for point in every]
    known = {
        f"{name}/{number}"
        for evals in sections
        for name, section in evals.items()
        if section.kind in KINDS  # the sweep tells what is wrong with others
        for number in section.numbers()
    } | {progress.LOSS}
    if metric.replace(f"{EMA_ENDING}/", "/") not in known:
        raise UserError(f"--metric={metric}: no point has it. {nearest(metric, known)}")


def _check_law(law: str | None, found: Sequence[StudyPoint]) -> None:
    """UserError if a law is asked for and no curve can have as many points as it has parameters."""
    if law is not None and len(found) < scaling_law.PARAMETERS[law]:
        raise UserError(
            f"--law={law} has {scaling_law.PARAMETERS[law]} parameters, and the study has "
            f"{progress.number(found)} that differ in more than the seed. Give longer lists of "
            "values, or leave out --law: the best models for a budget need none."
        )


def _check_data(folder: epath.Path, grid: SweepGrid) -> None:
    errors = ErrorCollector()
    preflight.look(grid, folder / TRAININGS, errors)
    errors.raise_all()


def _tell_costs(
    rows: Sequence[progress.PointProgress], known: dict[str, Cost], say: Say
) -> list[StudyPoint]:
    """A table of what the points cost, and sums of compute."""
    found = points.collect(rows, known)
    for line in results.cost_lines(found):
        say(line)
    total = sum(known[row.point.name].exaflops for row in rows)
    left = sum(known[row.point.name].exaflops for row in rows if row.state != "finished")
    say(f"study    {len(rows)} trainings, {total:.3g} exaFLOPs; {left:.3g} are left to do")
    return found
