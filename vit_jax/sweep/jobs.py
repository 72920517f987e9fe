"""Gives each point to a launcher: scripts/slurm.sh, gke.sh, cloud_tpu.sh, or another.

A launcher is called as LAUNCHER --name=NAME-3 -- ARGUMENTS OF THE TRAINING. It may exit when the
job is submitted, or when the training has finished; a second call must not submit a second job.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from etils import epath

from vit_jax.core import errors
from vit_jax.core.signals import StopRequest
from vit_jax.store.workdir import make
from vit_jax.sweep.grid import Point

LOGS = "launched"  # folder in the current directory
POLL_SECS = 0.2


class Job(NamedTuple):
    """A point and the launcher's command for it."""

    point: Point
    name: str
    command: Sequence[str]

    @property
    def log(self) -> epath.Path:
        """The log of the launcher's output."""
        return epath.Path(LOGS) / f"{self.name}.launcher.log"


def command(launcher: str) -> list[str]:
    """The words of --launcher. UserError if it has none, or a quote that is not closed."""
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise errors.UserError(f"--launcher={launcher}: {error}; see to its quotes.") from error
    if not words:
        raise errors.UserError(
            '--launcher is empty: give a command, such as "scripts/slurm.sh --nodes=1 --gpus=8", '
            "or leave it out to train here."
        )
    return words


def job(point: Point, workdir: str, launcher: str, sweep_name: str) -> Job:
    """The launcher's command; a relative workdir is made absolute, since jobs run elsewhere."""
    place = workdir if "://" in workdir else os.path.abspath(workdir)
    name = f"{sweep_name}-{point.number}"
    words = [*command(launcher), f"--name={name}", "--", *point.arguments(place)]
    return Job(point, name, words)


def launch(
    jobs: Sequence[Job],
    number: int,
    stop: StopRequest,
    tell: Callable[[Point, str, str], None],
) -> Iterator[None]:
    """Calls the launcher for all, at most `number` at a time; yields regularly until all ended.

    `tell` is called with (point, "launched" | "failed", reason). On `stop` they get SIGINT.
    """
    waiting, running = list(jobs), list[tuple[Job, subprocess.Popen[bytes]]]()
    interrupted = False
    while running or (waiting and not stop):
        for started in list(running):
            status = started[1].poll()
            if status is None:
                continue
            running.remove(started)
            ok = status == errors.EXIT_OK
            if ok or not stop:
                words = "" if ok else last_line(started[0].log)
                tell(started[0].point, "launched" if ok else "failed", words)
        if stop and not interrupted:
            interrupted = True
            for _, process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # also the script's child processes
        while not stop and waiting and len(running) < number:
            running.append(_start(waiting.pop(0)))
        yield
        time.sleep(POLL_SECS)


def last_line(log: epath.Path) -> str:
    """The last line of a launcher's log, and the path of the log."""
    lines = log.read_bytes().decode(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} ({log})"


def _start(job: Job) -> tuple[Job, subprocess.Popen[bytes]]:
    make(job.log.parent)
    try:
        with job.log.open("wb") as log:
            return job, subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise errors.UserError(
            f"--launcher: {job.command[0]} cannot be started: {error.strerror}."
        ) from error
