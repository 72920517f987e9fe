"""Trains the points of a sweep, on this machine or as jobs, and shows the results of all.

A launcher, scripts/slurm.sh, gke.sh, cloud_tpu.sh or another, is called for each point as
LAUNCHER --name=NAME-3 -- ARGUMENTS OF THE TRAINING. It may exit when the job is submitted, or when
the training has finished; a second call must not submit a second job.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from etils import epath

from vit_jax.core import cloud
from vit_jax.core.errors import EXIT_OK, Preempted, UserError
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.sweep import definition, picture, progress, results
from vit_jax.tools.lab.sweep.grid import Point, SweepGrid
from vit_jax.tools.lab.sweep.options import SweepOptions
from vit_jax.tools.lab.sweep.progress import Live, PointProgress
from vit_jax.tools.lab.sweep.slots import POLL_SECS, Slots

TRAIN = ("-m", "vit_jax.train")
LOGS = "launched"  # folder in the current directory, for the launchers' output
FOLLOW_SECS = 5.0  # between looks at work directories that jobs write to


class PointsFailed(UserError):
    """Some points of a sweep did not finish; all others have.

    Attributes:
      reasons: why each of them did not, by name.
    """

    def __init__(self, message: str, reasons: dict[str, str]):
        super().__init__(message)
        self.reasons = reasons


def sweep(
    folder: epath.Path,
    asked: SweepGrid,
    options: SweepOptions,
    trainer: Sequence[str] = (sys.executable, *TRAIN),
) -> None:
    """Trains the points that have not ended, and shows the results of all.

    UserError for wrong grids, configs and folders, PointsFailed if a point failed; Preempted on a
    signal: trainings of this machine have saved.
    """
    every, wanted = definition.points(folder, asked)
    look = lambda points: {p.number: progress.look(p, folder / p.name) for p in points}
    with workdir_lock.alone_in(folder), StopRequest() as stop:
        definition.write(folder, every, asked)
        live = Live(look(every), options.metric)
        again = ("waiting", "failed") if options.retry_failed else ("waiting",)
        to_do = [point for point in wanted if live.rows[point.number].state in again]
        states = [live.rows[point.number].state for point in wanted]
        begun = sum(live.rows[point.number].step > 0 for point in to_do)
        live.say(
            f"sweep    {progress.number(wanted)}: {states.count('finished')} finished, "
            f"{states.count('failed')} failed, {len(to_do)} to do"
            + (f" ({begun} of them begun)" if begun else "")
            + (f", {options.slots} at a time" if to_do else "")
        )
        try:
            if options.launcher is None:
                slots = Slots(
                    options.slots, trainer, live.tell, options.slot_variable, options.max_restarts
                )
                for _ in slots.run(folder, to_do, stop):
                    live.refresh(slots.running)
            elif not _launch(live, folder, to_do, options, stop):
                return
        finally:
            live.close()
        rows = look(every)
        rows_wanted = [rows[point.number] for point in wanted]
        if stop:
            finished = [row.state for row in rows_wanted].count("finished")
            others = "those that ran have saved" if options.launcher is None else "the jobs go on"
            raise Preempted(
                f"Stopped by {stop}; {finished} of {progress.number(wanted)} finished, and "
                f"{others}. Start the same command again to go on."
            )
        _show(live, folder, list(rows.values()), options.metric)
    if failed := [row for row in rows_wanted if row.state != "finished"]:
        reasons = {row.point.name: row.reason or row.state for row in failed}
        raise PointsFailed(
            f"{len(failed)} of {progress.number(wanted)} did not finish:"
            + "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
            + "\nlog.txt in the folder of each has the rest. Mend it, then the same command with "
            "--retry_failed.",
            reasons,
        )


def dry_run(folder: epath.Path, asked: SweepGrid, options: SweepOptions) -> None:
    """Prints the command of every point."""
    for point in definition.points(folder, asked)[1]:
        if options.launcher is None:
            print(shlex.join(["python", *TRAIN, *point.arguments(str(folder / point.name))]))
        else:
            print(shlex.join(_job(point, folder, options)))


def launcher_words(launcher: str) -> list[str]:
    """The words of --launcher. UserError if it has none, or a quote that is not closed."""
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise UserError(f"--launcher={launcher}: {error}; see to its quotes.") from error
    if not words:
        raise UserError(
            '--launcher is empty: give a command, such as "scripts/slurm.sh --nodes=1 --gpus=8", '
            "or leave it out to train here."
        )
    return words


def _job(point: Point, folder: epath.Path, options: SweepOptions) -> list[str]:
    """The launcher's command; a relative folder is made absolute, since jobs run elsewhere."""
    place = str(folder / point.name)
    place = place if cloud.is_remote(place) else os.path.abspath(place)
    name = f"--name={options.name}-{point.number}"
    return [*launcher_words(options.launcher or ""), name, "--", *point.arguments(place)]


def _launch(
    live: Live, folder: epath.Path, to_do: Sequence[Point], options: SweepOptions, stop: StopRequest
) -> bool:
    """Launches jobs, `options.slots` at a time, and follows them; False if they are not followed.

    On `stop` the launchers get SIGINT. UserError if one fails.
    """
    waiting, running = list(to_do), list[tuple[Point, subprocess.Popen[bytes]]]()
    failed: dict[str, str] = {}
    launched: set[str] = set()
    interrupted = False
    while running or (waiting and not stop):
        for point, process in list(running):
            if process.poll() is None:
                continue
            running.remove((point, process))
            if process.returncode == EXIT_OK:
                launched.add(point.name)
                live.tell(point, "launched", "")
            elif not stop:
                log = _log(point, options)
                lines = log.read_bytes().decode(errors="replace").strip().splitlines()
                failed[point.name] = f"{lines[-1] if lines else 'it said nothing'} ({log})"
                live.tell(point, "failed", failed[point.name])
        if stop and not interrupted:
            interrupted = True
            for _, process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # also the script's child processes
        while not stop and waiting and len(running) < options.slots:
            point = waiting.pop(0)
            running.append((point, _start(_job(point, folder, options), _log(point, options))))
        live.refresh((), launched)
        time.sleep(POLL_SECS)
    looked = 0.0
    while options.follow and launched and not stop:
        live.refresh((), launched)
        if time.monotonic() - looked > FOLLOW_SECS:
            looked = time.monotonic()
            launched -= {row.point.name for row in live.look(launched) if row.state == "finished"}
        time.sleep(POLL_SECS)
    if failed and not stop:
        raise UserError(
            f"The launcher failed for {len(failed)} of {progress.number(to_do)}:"
            + "".join(f"\n  {name}: {why}" for name, why in failed.items())
            + "\nThe same command launches them again."
        )
    if not options.follow and not stop:
        live.say("All jobs are launched. The same command without --nofollow shows how they are.")
    return options.follow


def _log(point: Point, options: SweepOptions) -> epath.Path:
    """The log of a launcher's output."""
    return epath.Path(LOGS) / f"{options.name}-{point.number}.launcher.log"


def _start(command: Sequence[str], log: epath.Path) -> subprocess.Popen[bytes]:
    workdir.make(log.parent)
    try:
        with log.open("wb") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise UserError(f"--launcher: {command[0]} cannot be started: {error.strerror}.") from error


def _show(
    live: Live, folder: epath.Path, rows: Sequence[PointProgress], metric: str | None
) -> None:
    """Shows the results on the screen and writes them to files."""
    metric = metric or progress.choose_metric(rows)
    known = sorted({key for row in rows for key in row.numbers})
    if known and metric not in known:
        raise UserError(f"--metric={metric}: no point has it. There are: {', '.join(known)}.")
    results.write_csv(folder / results.CSV_FILE, rows, metric)
    drawn = picture.write(folder / picture.PNG_FILE, rows, metric)
    for lines in (results.table(rows, metric), results.over_seeds(rows, metric)):
        if lines:
            live.say("\n" + "\n".join(lines))
    live.say(f"\nsaved    {folder / results.CSV_FILE}")
    if drawn:
        live.say(f"saved    {folder / picture.PNG_FILE}")
