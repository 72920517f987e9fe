"""Runs the points in slots: a limited number of processes, each restarted until it has ended.

A process inherits a locked file of its work directory, so the lock is held exactly as long as the
process lives, even if the sweep was killed. A restarted sweep leaves running processes alone, waits
for them, and counts them as taking a slot.

Or gives them to a launcher, scripts/slurm.sh, gke.sh, cloud_tpu.sh or another: it is called for
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
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from vit_jax.core import cloud, errors
from vit_jax.core.errors import UserError
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import Point, short_hash
from vit_jax.tools.lab.sweep.progress import Live

LOG_FILE = "log.txt"
SLOT_FILE = ".slot"  # locked while a training of a sweep lives; names it
RESTART_STATUSES = (errors.EXIT_PREEMPTED, errors.EXIT_PEER_LOST)
POLL_SECS = 0.2
MAX_REASON = 1000  # characters
MAX_JOB_NAME = 40  # characters that scripts/gke.sh takes
LOGS = "launched"  # folder in the current directory, for the launchers' output
FOLLOW_SECS = 5.0  # between looks at work directories that jobs write to


class SweepOptions(NamedTuple):
    """How trainings run side by side: by flags of these names, and the command of a training."""

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


def slot_values(options: SweepOptions) -> list[str]:
    """The values of --slot_variable: those that it lists in this environment, else 0, 1, ...

    UserError if it lists fewer than there are slots.
    """
    listed = os.environ.get(options.slot_variable or "")
    if listed is None:
        return [str(slot) for slot in range(options.slots)]
    values = listed.split(",")
    if len(values) < options.slots:
        raise UserError(
            f"--slots={options.slots}: {options.slot_variable}={listed} lists {len(values)}, and "
            f"each slot takes one of them. Give --slots={len(values)}, or list more."
        )
    return values


class Running(NamedTuple):
    """A point that runs in its folder; process None: started by another sweep, or by hand."""

    point: Point
    folder: epath.Path
    slot: int
    process: subprocess.Popen[bytes] | None
    log_start: int = 0  # bytes of the log before this start


class Slots:
    """Runs points by the command `options.trainer`, `options.slots` at a time."""

    def __init__(self, live: Live, options: SweepOptions):
        self._live, self._options = live, options
        self._slot_values = slot_values(options)
        self._waiting: list[Point] = []
        self._running: list[Running] = []
        self._setbacks: dict[str, int] = {}  # starts without a newer checkpoint, by name
        self._saved: dict[str, int] = {}

    def run(self, folder: epath.Path, points: Sequence[Point], stop: StopRequest) -> None:
        """Returns when all points have ended, as they are also asked to by `stop`.

        A training that cannot be asked to, started by hand or on another host, is then left alone.
        """
        for point in points:  # those that still run have their slots before others are started
            place = folder / point.name
            if _is_alive(place):
                self._running.append(Running(point, place, _holder(place).get("slot", -1), None))
                self._live.tell(point, "found", "")
            else:
                self._waiting.append(point)
        signalled = False
        while self._running or (self._waiting and not stop):
            for run in list(self._running):
                self._poll(run, stopping=bool(stop))
            if stop and not signalled:
                signalled = True
                for run in list(self._running):
                    if not _terminate(run):
                        self._running.remove(run)
                        self._live.tell(run.point, "goes on", "another process started it")
            while not stop and self._waiting and len(self._running) < self._options.slots:
                point = self._waiting.pop(0)
                self._start(point, folder / point.name)
            self._live.refresh({run.point.name for run in self._running})
            time.sleep(POLL_SECS)

    def _poll(self, run: Running, *, stopping: bool) -> None:
        point, process = run.point, run.process
        if process is None:
            if not _is_alive(run.folder):
                self._running.remove(run)
                if progress.read_row(point, run.folder).state == "finished":
                    self._live.tell(point, "finished", "")
                else:
                    self._waiting.insert(0, point)
            return
        status = process.poll()
        if status is None:
            return
        self._running.remove(run)
        if status == errors.EXIT_OK:
            self._live.tell(point, "finished", "")
        elif stopping:
            self._live.tell(point, "stopped", "")
        elif status in RESTART_STATUSES or status < 0 or status > 128:
            self._requeue(run, _describe_status(status))
        else:
            words = last_error(run.folder / LOG_FILE, run.log_start)
            self._fail(run, status, words or _describe_status(status))

    def _requeue(self, run: Running, how: str) -> None:
        """Queues a point again, unless it was restarted too often without progress."""
        name, saved = run.point.name, workdir.saved_step(run.folder)
        further = saved > self._saved.get(name, 0)
        self._saved[name] = saved
        self._setbacks[name] = 0 if further else self._setbacks.get(name, 0) + 1
        if self._setbacks[name] > self._options.max_restarts:
            words = last_error(run.folder / LOG_FILE, run.log_start)
            reason = f"ended by {how} {self._setbacks[name]} times without a newer checkpoint"
            self._fail(run, 1, f"{reason}{words and f'; {words}'}")
            return
        self._live.tell(run.point, "again", how)
        self._waiting.insert(0, run.point)

    def _fail(self, run: Running, status: int, reason: str) -> None:
        progress.write_failure(run.folder, status, reason)
        self._live.tell(run.point, "failed", reason)

    def _start(self, point: Point, folder: epath.Path) -> None:
        workdir.make(folder)
        slot = min(set(range(self._options.slots)) - {run.slot for run in self._running}, default=0)
        # The user may train there by hand.
        held = None if _is_alive(folder) else workdir_lock.try_lock(folder, SLOT_FILE)
        if held is None:
            self._running.append(Running(point, folder, slot, None))
            self._live.tell(point, "found", "")
            return
        os.truncate(held, 0)
        progress.forget_failure(folder)
        self._saved.setdefault(point.name, workdir.saved_step(folder))
        variable = self._options.slot_variable
        environment = os.environ | ({variable: self._slot_values[slot]} if variable else {})
        with _open_log(folder) as log:
            start = log.tell()
            # In a session of its own: Ctrl-C goes to the sweep, which signals its trainings once.
            process = subprocess.Popen(
                [*self._options.trainer, *point.arguments(str(folder))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[held] if os.name == "posix" else (),
                start_new_session=True,
            )
        holder = {"slot": slot, "pid": process.pid, "host": socket.gethostname()}
        os.write(held, json.dumps(holder).encode())
        os.close(held)
        self._running.append(Running(point, folder, slot, process, start))
        self._live.tell(point, "started", "")


def _open_log(folder: epath.Path) -> BinaryIO:
    """Opens the log at its end, after a line with the time. UserError if it cannot be written."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with workdir.explain_unwritable_workdir(folder):
        log = (Path(folder) / LOG_FILE).open("ab")
        log.write(f"--- started {now}\n".encode())
        log.flush()
    return log


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
    """The holder of the slot's file; {} if unknown."""
    try:
        holder = json.loads((folder / SLOT_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _terminate(run: Running) -> bool:
    """Sends SIGTERM, on which a training saves; also to a training of a killed sweep.

    Returns whether it could: not to one that was started by hand, or on another host.
    """
    if run.process is not None:
        run.process.terminate()
        return True
    holder = _holder(run.folder)
    of_sweep = workdir_lock.is_locked(run.folder, SLOT_FILE)
    if of_sweep and holder.get("host") == socket.gethostname():
        with contextlib.suppress(OSError, KeyError, ValueError):
            os.kill(int(holder["pid"]), signal.SIGTERM)
            return True
    return False


def _describe_status(status: int) -> str:
    """An exit status in words: "status 75" or "SIGKILL"."""
    number = -status if status < 0 else status - 128
    with contextlib.suppress(ValueError):  # of an ordinary status
        return signal.Signals(number).name
    return f"status {status}"


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


def job(point: Point, folder: epath.Path, options: SweepOptions) -> list[str]:
    """The launcher's command; a relative folder is made absolute, since jobs run elsewhere."""
    place = str(folder / point.name)
    place = place if cloud.is_remote(place) else os.path.abspath(place)
    words = launcher_words(options.launcher or "")
    return [*words, f"--name={job_name(point, options)}", "--", *point.arguments(place)]


def job_name(point: Point, options: SweepOptions) -> str:
    """ "my-study-3", as Kubernetes and Google Cloud take names; unique, though it may be cut."""
    full = f"{options.name}-{point.number}"
    name = re.sub("[^a-z0-9]+", "-", full.lower()).strip("-")
    name = name if name[0].isalpha() else f"job-{name}"
    if len(name) > MAX_JOB_NAME:
        name = f"{name[: MAX_JOB_NAME - 9]}-{short_hash(full, 8)}"
    return name


def launch(
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
            if process.returncode == errors.EXIT_OK:
                launched.add(point.name)
                live.tell(point, "launched", "")
            elif not stop:
                log = _launcher_log(point, options)
                failed[point.name] = f"{last_error(log) or 'it said nothing'} ({log})"
                live.tell(point, "failed", failed[point.name])
        if stop and not interrupted:
            interrupted = True
            for _, process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # also the script's child processes
        while not stop and waiting and len(running) < options.slots:
            point = waiting.pop(0)
            running.append(
                (point, _start(job(point, folder, options), _launcher_log(point, options)))
            )
        live.refresh((), launched)
        time.sleep(POLL_SECS)
    looked = 0.0
    while options.follow and launched and not stop:
        live.refresh((), launched)
        if time.monotonic() - looked > FOLLOW_SECS:
            looked = time.monotonic()
            launched -= {
                row.point.name for row in live.read_rows(launched) if row.state == "finished"
            }
        time.sleep(POLL_SECS)
    if failed and not stop:
        raise UserError(
            f"The launcher failed for {len(failed)} of {progress.count_of(len(to_do))}:"
            + "".join(f"\n  {name}: {why}" for name, why in failed.items())
            + "\nThe same command launches them again."
        )
    if not options.follow and not stop:
        live.say("All jobs are launched. The same command without --nofollow shows how they are.")
    return options.follow


def _launcher_log(point: Point, options: SweepOptions) -> epath.Path:
    return epath.Path(LOGS) / f"{job_name(point, options)}.launcher.log"


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
