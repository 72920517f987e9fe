"""Runs the points of a sweep in slots, so many at a time: as processes here, or as jobs elsewhere.

A process inherits a locked file of its work directory, so the lock is held exactly as long as the
process lives, even if the sweep was killed. A restarted sweep leaves running processes alone, waits
for them, and counts them as taking a slot.

Jobs are given to a launcher, scripts/slurm.sh, gke.sh, cloud_tpu.sh or another: it is called for
each point as LAUNCHER --name=NAME-3 -- ARGUMENTS OF THE TRAINING. It may exit when the job is
submitted, or when the training has finished; a second call must not submit a second job.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core.errors import (
    EXIT_OK,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    UserError,
    reading,
    writing,
)
from vit_jax.core.files import is_remote
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import Point, short_hash
from vit_jax.tools.lab.sweep.progress import Reporter

LOG_FILE = "log.txt"
SLOT_FILE = ".slot"  # locked while a training of a sweep lives; names it
POLL_SECS = 0.2
MAX_REASON = 1000  # characters
MAX_JOB_NAME = 40  # characters that scripts/gke.sh takes
LOGS = "launched"  # folder in the current directory, for the launchers' output
FOLLOW_SECS = 5.0  # between looks at work directories that jobs write to


class SweepOptions(NamedTuple):
    """Options of trainings side by side, as flags of these names; the command of a training."""

    name: str = "sweep"
    slots: int = 1
    launcher: str | None = None
    follow: bool = True
    metric: str | None = None
    retry_failed: bool = False
    slot_variable: str | None = None
    max_restarts: int = 5
    trainer: Sequence[str] = (sys.executable, "-m", "vit_jax.train")

    def for_part(self, part: str) -> SweepOptions:
        """The options of a sweep that is a part of this command's, with names of jobs to match."""
        return self._replace(name=f"{self.name}-{part}")


class Running(NamedTuple):
    """A point's training or launcher; process None: started by another sweep, or by hand."""

    point: Point
    folder: epath.Path
    slot: int
    log: epath.Path
    process: subprocess.Popen[bytes] | None = None
    log_start: int = 0  # bytes of the log before this start

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.process is not None:
            return self.process.poll()
        if _is_alive(self.folder):
            return None
        row = progress.read_row(self.point, self.folder)
        return EXIT_OK if row.state == "finished" else EXIT_PREEMPTED

    def reason(self, status: int) -> str:
        """Why it ended: its last words, or the status."""
        return last_error(self.log, self.log_start) or _describe_status(status)


def make_runner(reporter: Reporter, options: SweepOptions) -> Processes | Jobs:
    return (Processes if options.launcher is None else Jobs)(reporter, options)


def run_points(
    runner: Processes | Jobs,
    folder: epath.Path,
    points: Sequence[Point],
    slots: int,
    stop: StopRequest,
) -> None:
    """Returns when all points have ended, as they are also asked to by `stop`.

    A training that cannot be asked to, started by hand or on another host, is then left alone.
    """
    # Those that still run have their slots before others are started.
    found = [runner.find(point, folder / point.name) for point in points]
    running = [run for run in found if run is not None]
    waiting = [point for point, run in zip(points, found, strict=True) if run is None]
    signalled = False
    while running or (waiting and not stop):
        for run in list(running):
            if (status := run.poll()) is not None:
                running.remove(run)
                if runner.end(run, status, stopping=bool(stop)):
                    waiting.insert(0, run.point)
        if stop and not signalled:
            signalled = True
            running = [run for run in running if runner.interrupt(run)]
        while not stop and waiting and len(running) < slots:
            point = waiting.pop(0)
            slot = min(set(range(slots)) - {run.slot for run in running}, default=0)
            running.append(runner.start(point, folder / point.name, slot))
        runner.reporter.refresh({run.point.name for run in running})
        time.sleep(POLL_SECS)
    runner.follow(stop)


class Processes:
    """Trainings on this machine, each started again until it has ended by itself."""

    when_stopped = "the trainings that it stopped have saved"  # for the message of a signal

    def __init__(self, reporter: Reporter, options: SweepOptions):
        self.reporter, self._options = reporter, options
        self._slot_values = slot_values(options)
        self._setbacks: dict[str, int] = {}  # starts without a newer checkpoint, by name
        self._saved: dict[str, int] = {}

    def command(self, point: Point, folder: epath.Path) -> list[str]:
        return [*self._options.trainer, *point.arguments(str(folder))]

    def find(self, point: Point, folder: epath.Path) -> Running | None:
        return self._found(point, folder) if _is_alive(folder) else None

    def _found(self, point: Point, folder: epath.Path) -> Running:
        self.reporter.tell(point, "found")
        return Running(point, folder, _holder(folder).get("slot", -1), folder / LOG_FILE)

    def start(self, point: Point, folder: epath.Path, slot: int) -> Running:
        workdir.make(folder)
        # The user may train there by hand.
        held = None if _is_alive(folder) else workdir_lock.try_lock(folder, SLOT_FILE)
        if held is None:
            return self._found(point, folder)
        os.truncate(held, 0)
        progress.forget_failure(folder)
        self._saved.setdefault(point.name, workdir.saved_step(folder))
        variable, log = self._options.slot_variable, folder / LOG_FILE
        process, log_start = _spawn(
            self.command(point, folder),
            log,
            env=os.environ | ({variable: self._slot_values[slot]} if variable else {}),
            pass_fds=[held] if os.name == "posix" else (),
        )
        holder = {"slot": slot, "pid": process.pid, "host": socket.gethostname()}
        os.write(held, json.dumps(holder).encode())
        os.close(held)
        self.reporter.tell(point, "started")
        return Running(point, folder, slot, log, process, log_start)

    def end(self, run: Running, status: int, *, stopping: bool) -> bool:
        """Reports the end; returns whether the point is to be started again."""
        if status == EXIT_OK or stopping:
            self.reporter.tell(run.point, "stopped" if status else "finished")
        elif status in (EXIT_PREEMPTED, EXIT_PEER_LOST) or not 0 < status <= 128:
            return self._goes_on(run, status)
        else:
            self._fail(run, status, run.reason(status))
        return False

    def _goes_on(self, run: Running, status: int) -> bool:
        """Returns whether to start a point again: not too often without progress."""
        name, saved = run.point.name, workdir.saved_step(run.folder)
        further = saved > self._saved.get(name, 0)
        self._saved[name] = saved
        self._setbacks[name] = 0 if further else self._setbacks.get(name, 0) + 1
        if self._setbacks[name] > self._options.max_restarts:
            times = f"ended {self._setbacks[name]} times without a newer checkpoint"
            self._fail(run, EXIT_USER_ERROR, f"{times}: {run.reason(status)}")
            return False
        self.reporter.tell(run.point, "again", _describe_status(status))
        return True

    def _fail(self, run: Running, status: int, reason: str) -> None:
        progress.write_failure(run.folder, status, reason)
        self.reporter.tell(run.point, "failed", reason)

    def interrupt(self, run: Running) -> bool:
        """Asks a training to save and end; returns False for one that another process started."""
        holder = _holder(run.folder)
        with contextlib.suppress(OSError, KeyError, ValueError):
            if run.process is not None:
                run.process.terminate()
            elif (
                workdir_lock.is_locked(run.folder, SLOT_FILE)
                and holder["host"] == socket.gethostname()
            ):
                os.kill(int(holder["pid"]), signal.SIGTERM)
            else:
                self.reporter.tell(run.point, "goes on", "another process started it")
                return False
        return True

    def follow(self, stop: StopRequest) -> None:
        del stop


class Jobs:
    """Trainings as jobs, which a launcher submits."""

    when_stopped = "the jobs continue"

    def __init__(self, reporter: Reporter, options: SweepOptions):
        self.reporter, self._options = reporter, options
        with reading("--launcher", options.launcher):
            self._launcher = shlex.split(options.launcher or "")
        self._submitted: set[str] = set()  # points that are jobs
        self._refused: dict[str, str] = {}  # why the launcher failed, by point

    def command(self, point: Point, folder: epath.Path) -> list[str]:
        """The launcher's; a relative folder is made absolute, since jobs run elsewhere."""
        place = str(folder) if is_remote(folder) else os.path.abspath(folder)
        name = f"--name={job_name(point, self._options)}"
        return [*self._launcher, name, "--", *point.arguments(place)]

    def find(self, point: Point, folder: epath.Path) -> Running | None:
        return None

    def start(self, point: Point, folder: epath.Path, slot: int) -> Running:
        log = epath.Path(LOGS) / f"{job_name(point, self._options)}.launcher.log"
        with reading("--launcher", self._launcher[0]):
            process, log_start = _spawn(self.command(point, folder), log)
        return Running(point, folder, slot, log, process, log_start)

    def end(self, run: Running, status: int, *, stopping: bool) -> bool:
        name = run.point.name
        if status == EXIT_OK:
            self._submitted.add(name)
            self.reporter.tell(run.point, "submitted")
        elif not stopping:
            self._refused[name] = f"{run.reason(status)} ({run.log})"
            self.reporter.tell(run.point, "failed", self._refused[name])
        return False

    def interrupt(self, run: Running) -> bool:
        assert run.process is not None
        with contextlib.suppress(OSError):  # it has just ended
            os.killpg(run.process.pid, signal.SIGINT)  # also the script's child processes
        return True

    def follow(self, stop: StopRequest) -> None:
        looked = 0.0
        while self._options.follow and self._submitted and not stop:
            if time.monotonic() - looked > FOLLOW_SECS:
                looked = time.monotonic()
                self._submitted -= self.reporter.finished(self._submitted)
            self.reporter.refresh()
            time.sleep(POLL_SECS)
        if self._refused and not stop:
            raise UserError(
                f"The launcher failed for {progress.count_of(len(self._refused))}:"
                + "".join(f"\n  {name}: {why}" for name, why in self._refused.items())
                + "\nThe same command launches them again."
            )


def slot_values(options: SweepOptions) -> list[str]:
    """The values of --slot_variable: those that it lists in this environment, else 0, 1, ..."""
    listed = os.environ.get(options.slot_variable or "")
    if listed is None:
        return [str(slot) for slot in range(options.slots)]
    values = listed.split(",")
    if len(values) < options.slots:
        rule = f"is more than {options.slot_variable}={listed} lists, one for each slot."
        raise UserError(rule, field="--slots", value=options.slots)
    return values


def _spawn(
    command: Sequence[str], log: epath.Path, **how: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a process, and returns the size of its log before it."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    workdir.make(log.parent)
    with writing(log), Path(log).open("ab") as out:
        out.write(f"--- started {now}\n".encode())
        start = out.tell()
    with Path(log).open("ab") as out:
        # In a session of its own: Ctrl-C goes to the sweep, which signals each once.
        how |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, start_new_session=True, **how), start


def last_error(log: epath.Path, start: int = 0) -> str:
    """The message at the end of a log: from "error:" on if present, else its last line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    words = "\n".join(lines[begins[-1] :]) if begins else (lines[-1] if lines else "")
    return words.removeprefix("error: ")[:MAX_REASON]


def _is_alive(folder: epath.Path) -> bool:
    # A sweep's training takes the other lock only once it has begun; this check must not collide.
    return workdir_lock.is_locked(folder, SLOT_FILE) or workdir_lock.is_locked(folder)


def _holder(folder: epath.Path) -> dict[str, Any]:
    with contextlib.suppress(UserError):
        return workdir.read_json(folder / SLOT_FILE, dict, "") or {}
    return {}


def _describe_status(status: int) -> str:
    number = -status if status < 0 else status - 128
    with contextlib.suppress(ValueError):  # of an ordinary status
        return signal.Signals(number).name
    return f"status {status}"


def job_name(point: Point, options: SweepOptions) -> str:
    """ "my-study-3", as Kubernetes and Google Cloud take names; unique, though it may be cut."""
    full = f"{options.name}-{point.number}"
    name = re.sub("[^a-z0-9]+", "-", full.lower()).strip("-")
    name = name if name[0].isalpha() else f"job-{name}"
    if len(name) > MAX_JOB_NAME:
        name = f"{name[: MAX_JOB_NAME - 9]}-{short_hash(full, 8)}"
    return name
