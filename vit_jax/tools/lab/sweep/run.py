"""Trains a grid of configs, whose axes are values separated by commas:

    vit-jax sweep --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \\
      --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2

Arguments of vit_jax.train follow the --. Each point has a folder of its own below --workdir.
The same command again continues, and ends with the results: a table, results.csv, results.png.

--launcher="scripts/slurm.sh --nodes=1 --gpus=8" makes each point a job instead of a process here.
"""

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from absl import flags
from etils import epath

from vit_jax.config import MeshConfig, RunConfig
from vit_jax.core import command
from vit_jax.core.errors import ErrorCollector, Preempted, UserError
from vit_jax.core.files import is_remote
from vit_jax.core.signals import StopRequest
from vit_jax.core.tables import csv_text
from vit_jax.draw import style
from vit_jax.learning.state import EMA_ENDING
from vit_jax.run.build import Run
from vit_jax.store import workdir, workdir_lock
from vit_jax.store.metrics import RESERVED
from vit_jax.tools.lab.sweep import grid, picture, progress, slots
from vit_jax.tools.lab.sweep.grid import Point, SweepGrid
from vit_jax.tools.lab.sweep.progress import PointProgress, Reporter
from vit_jax.tools.lab.sweep.slots import SweepOptions

PNG_FILE = "results.png"
# Results of the commands that run sweeps, beside those of the sweeps themselves.
JSON_FILE, HTML_FILE = "results.json", "results.html"


class Unfinished(UserError):
    """A part has failed; the rest is done, and the results are written."""

    def __init__(self, folder: epath.Path, failures: Sequence[str]) -> None:
        super().__init__(
            f"{len(failures)} did not finish:"
            + "".join(f"\n  {each}" for each in failures)
            + f"\nlog.txt in the folder of each, below {folder}, has the rest. Correct the cause, "
            "then give the same command with --retry_failed."
        )


class SweepResult(NamedTuple):
    rows: list[PointProgress]  # of the points that were asked for

    @property
    def failures(self) -> list[str]:
        return progress.failures(self.rows)


def sweep(folder: epath.Path, requested: SweepGrid, options: SweepOptions) -> SweepResult:
    """Trains what is left of the grid in `folder`, and prints and saves the results."""
    all_points, points = grid.add_points(folder, requested)
    if options.metric is not None:
        check_metric(options.metric, all_points)
    with workdir_lock.lock_for_process(folder), StopRequest() as stop:
        grid.write(folder, all_points, requested)
        reporter = Reporter(progress.read_rows(all_points, folder), options.metric)
        rows = [reporter.rows[point.number] for point in points]
        startable = ("waiting", "failed") if options.retry_failed else ("waiting",)
        to_do = [row.point for row in rows if row.state in startable]
        begun = sum(row.step > 0 for row in rows if row.state in startable)
        states = [row.state for row in rows]
        reporter.say(
            f"sweep    {progress.count_of(len(rows))}: {states.count('finished')} finished, "
            f"{states.count('failed')} failed, {len(to_do)} to do"
            + (f" ({begun} of them begun)" if begun else "")
            + (f", {options.slots} at a time" if to_do else "")
        )
        runner = slots.make_runner(reporter, options)
        slots.run_points(runner, folder, to_do, options.slots, stop)
        if not options.follow and not stop:
            reporter.say(
                "All jobs are launched. Without --nofollow this command shows how they are."
            )
            return SweepResult([])
        all_rows = progress.read_rows(all_points, folder)
        rows = [row for row in all_rows if row.point in points]
        if stop:
            finished = [row.state for row in rows].count("finished")
            raise Preempted(
                f"Stopped by {stop}; {finished} of {progress.count_of(len(rows))} finished, and "
                f"{runner.when_stopped}. Start the same command again to continue."
            )
        _show(reporter, folder, all_rows, options.metric)
    return SweepResult(rows)


def dry_run(folder: epath.Path, requested: SweepGrid, options: SweepOptions) -> None:
    runner = slots.make_runner(Reporter([], None), options)
    for point in grid.add_points(folder, requested)[1]:
        program, *arguments = runner.command(point, folder / point.name)
        print(shlex.join(["python" if program == sys.executable else program, *arguments]))


def _show(
    reporter: Reporter, folder: epath.Path, rows: Sequence[PointProgress], metric: str | None
) -> None:
    metric = metric or progress.choose_metric(rows)
    known = sorted({key for row in rows for key in row.numbers})
    if known and metric not in known:
        raise progress.UnknownMetric(metric, known)
    axes, keys = list(rows[0].point.values), progress.evaluation_keys(rows)
    lines = progress.csv_lines(progress.sort_rows(rows, metric), axes, keys)
    workdir.save(folder / progress.CSV_FILE, csv_text(lines))
    for shown in (progress.result_table(rows, metric), progress.seed_table(rows, metric)):
        if shown:
            reporter.say("\n" + "\n".join(shown))
    reporter.say(f"\nsaved    {folder / progress.CSV_FILE}")
    axis, curves = picture.curves(rows, metric)
    if curves:
        workdir.save(folder / PNG_FILE, style.png(picture.draw(axis, curves, metric)))
        reporter.say(f"saved    {folder / PNG_FILE}")


def check_metric(metric: str, points: Sequence[Point]) -> None:
    known = {
        f"{name}/{number}"
        for point in points
        for name, numbers in grid.evaluation_numbers(point.load()).items()
        for number in numbers
    } | {progress.LOSS}
    of_training = metric.partition("/")[0] in RESERVED  # what else these log is not known before
    if not of_training and metric.replace(f"{EMA_ENDING}/", "/") not in known:
        raise progress.UnknownMetric(metric, known)


def check_values(requested: SweepGrid, folder: epath.Path, errors: ErrorCollector) -> None:
    """Collects the errors of each value of each axis, with the first of others; not of devices."""
    first = requested.points()[0]
    others = [{f: value} for f, values in requested.axes.items() for value in values[1:]]
    for values in [first, *(first | other for other in others)]:
        check_config(requested.load(values), folder, errors)


def check_config(config: RunConfig, folder: epath.Path, errors: ErrorCollector) -> None:
    """Collects the errors of a training, whose devices may be others than these."""
    Run(dataclasses.replace(config, mesh=MeshConfig()), folder, errors)


def save_results(
    folder: epath.Path, document: Any, table: Sequence[Sequence[Any]], page: str
) -> None:
    workdir.save_json(folder / JSON_FILE, document)
    workdir.save(folder / progress.CSV_FILE, csv_text(table))
    workdir.save(folder / HTML_FILE, page)


def show_results(folder: epath.Path, lines: Iterable[str]) -> None:
    print(*lines, f"saved    {folder / HTML_FILE}", sep="\n")


def use_cpu_only() -> None:
    """Leaves accelerators to the trainings: this process computes shapes on the CPU."""
    jax.config.update("jax_platforms", "cpu")


# The command, and what those that run sweeps share with it.
FLAGS = flags.FLAGS
SHARED = ("slots", "launcher", "slot_variable", "max_restarts", "retry_failed")


def define_flags(workdir: str, dry_run: str, *, json: bool = True) -> None:
    """Defines the flags of every command that runs sweeps; `workdir` and `dry_run` are helps."""
    default = SweepOptions()
    flags.DEFINE_string("workdir", None, workdir)
    flags.DEFINE_bool("dry_run", False, dry_run)
    flags.mark_flag_as_required("workdir")
    if json:
        flags.DEFINE_bool("json", False, "Print the results as one JSON object.")
    flags.DEFINE_integer("slots", default.slots, "Trainings, or launchers, at a time.", 1)
    flags.DEFINE_string(
        "launcher",
        None,
        'Gives each training to this command, such as "scripts/slurm.sh --nodes=1 --gpus=8", as a '
        "job of its own; default: trains on this machine.",
    )
    flags.DEFINE_string(
        "slot_variable",
        None,
        "Environment variable that gets the slot's number, from 0, or one of the values that it "
        "lists already: CUDA_VISIBLE_DEVICES gives each training a GPU of its own.",
    )
    flags.DEFINE_integer(
        "max_restarts",
        default.max_restarts,
        "How often in a row a training is restarted without a newer checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_bool("retry_failed", False, "Start trainings that have failed again.")


def define_metric(what: str) -> None:
    rule = f"To {what} by, such as test/accuracy; default: by what was evaluated."
    flags.DEFINE_string("metric", None, rule)


def read_grid() -> SweepGrid:
    """Returns the grid of --config and its overrides."""
    launched = FLAGS.launcher is not None
    return grid.from_config(FLAGS.config, FLAGS.config_override, launched=launched)


def read_flags() -> tuple[epath.Path, SweepOptions]:
    name = os.path.basename(os.path.normpath(FLAGS.workdir))
    options = SweepOptions(name, **command.values(*SHARED))
    slots.make_runner(Reporter([], None), options)  # checks them before a folder is made
    return workdir.named(FLAGS.workdir), options


def run_or_show(
    run: Callable[..., Any], show: Callable[..., None], folder: epath.Path, *arguments: Any
) -> None:
    """Calls `run`, whose result has `failures`, or `show` with --dry_run.

    With --json prints results.json and nothing else. Also refuses to show trainings of this machine
    in a folder that is not on it: a dry run says whether all is right.
    """
    if is_remote(folder) and FLAGS.launcher is None:
        rule = "is not on this machine, where logs and locks of its trainings are; see --launcher."
        raise UserError(rule, field="--workdir", value=folder)
    as_json = getattr(FLAGS, "json", False)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        if FLAGS.dry_run:
            show(folder, *arguments)
            return
        result = run(folder, *arguments)
    if as_json:
        print((folder / JSON_FILE).read_text(), end="")
    if result.failures:
        raise Unfinished(folder, result.failures)


def main(arguments: list[str]) -> None:
    folder, options = read_flags()
    requested = grid.parse(arguments)._replace(launched=options.launcher is not None)
    follow = FLAGS.follow or options.launcher is None
    options = options._replace(name=FLAGS.name or options.name, follow=follow, metric=FLAGS.metric)
    run_or_show(sweep, dry_run, folder, requested, options)


if __name__ == "__main__":
    flags.DEFINE_string("name", None, "Of jobs: NAME-1, NAME-2, ...; default: that of the folder.")
    define_flags(
        "Folder of the sweep, with one below it for each point.",
        "Show the command of every point, and start none.",
        json=False,
    )
    flags.DEFINE_bool("follow", True, "Wait until all jobs of --launcher have finished.")
    define_metric("sort")
    command.run(main, positional=True, hint='Arguments of vit_jax.train follow " -- ".')
