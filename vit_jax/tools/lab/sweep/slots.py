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
from typing import Any, NamedTuple

from etils import epath

from vit_jax.core import errors
from vit_jax.core.errors import UserError, writing
from vit_jax.core.files import is_remote
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir, workdir_lock
from vit_jax.tools.lab.sweep import progress
from vit_jax.tools.lab.sweep.grid import Point, short_hash
from vit_jax.tools.lab.sweep.progress import Live

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


class Running(NamedTuple):
    """A point's training or launcher; process None: started by another sweep, or by hand."""

    point: Point
    folder: epath.Path
    slot: int
    process: subprocess.Popen[bytes] | None
    log: epath.Path
    log_start: int = 0  # bytes of the log before this start


class Slots:
    """Runs points by the command `options.trainer`, or a launcher, `options.slots` at a time."""

    def __init__(self, live: Live, options: SweepOptions):
        self._live, self._options = live, options
        self._slot_values = slot_values(options)
        self._waiting: list[Point] = []
        self._running: list[Running] = []
        self._setbacks: dict[str, int] = {}  # starts without a newer checkpoint, by name
        self._saved: dict[str, int] = {}
        self._launched: set[str] = set()  # points that are jobs
        self._refused: dict[str, str] = {}  # why the launcher failed, by point

    def run(self, folder: epath.Path, points: Sequence[Point], stop: StopRequest) -> None:
        """Returns when all points have ended, as they are also asked to by `stop`.

        A training that cannot be asked to, started by hand or on another host, is then left alone;
        so are jobs. With options.follow it waits for these, else only for their launchers.
        """
        for point in points:  # those that still run have their slots before others are started
            place = folder / point.name
            if self._options.launcher is None and _is_alive(place):
                self._find(point, place, _holder(place).get("slot", -1))
            else:
                self._waiting.append(point)
        signalled = False
        while self._running or (self._waiting and not stop):
            for run in list(self._running):
                self._poll(run, stopping=bool(stop))
            if stop and not signalled:
                signalled = True
                for run in list(self._running):
                    if not self._interrupt(run):
                        self._running.remove(run)
                        self._live.tell(run.point, "goes on", "another process started it")
            while not stop and self._waiting and len(self._running) < self._options.slots:
                point = self._waiting.pop(0)
                self._start(point, folder / point.name)
            trained = self._running if self._options.launcher is None else []
            self._live.refresh({run.point.name for run in trained}, self._launched)
            time.sleep(POLL_SECS)
        left, looked = set(self._launched), 0.0
        while self._options.follow and left and not stop:
            self._live.refresh((), left)
            if time.monotonic() - looked > FOLLOW_SECS:
                looked = time.monotonic()
                rows = self._live.read_rows(left)
                left -= {row.point.name for row in rows if row.state == "finished"}
            time.sleep(POLL_SECS)
        if self._refused and not stop:
            raise UserError(
                f"The launcher failed for {len(self._refused)} of "
                f"{progress.count_of(len(points))}:"
                + "".join(f"\n  {name}: {why}" for name, why in self._refused.items())
                + "\nThe same command launches them again."
            )

    def _find(self, point: Point, folder: epath.Path, slot: int) -> None:
        self._running.append(Running(point, folder, slot, None, folder / LOG_FILE))
        self._live.tell(point, "found", "")

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
        reason = last_error(run.log, run.log_start) or _describe_status(status)
        if self._options.launcher is not None:
            if status == errors.EXIT_OK:
                self._launched.add(point.name)
                self._live.tell(point, "launched", "")
            elif not stopping:
                self._refused[point.name] = f"{reason} ({run.log})"
                self._live.tell(point, "failed", self._refused[point.name])
        elif status == errors.EXIT_OK or stopping:
            self._live.tell(point, "stopped" if status else "finished", "")
        elif status in (errors.EXIT_PREEMPTED, errors.EXIT_PEER_LOST) or not 0 < status <= 128:
            self._requeue(run, _describe_status(status))
        else:
            self._fail(run, status, reason)

    def _requeue(self, run: Running, how: str) -> None:
        """Queues a point again, unless it was restarted too often without progress."""
        name, saved = run.point.name, workdir.saved_step(run.folder)
        further = saved > self._saved.get(name, 0)
        self._saved[name] = saved
        self._setbacks[name] = 0 if further else self._setbacks.get(name, 0) + 1
        if self._setbacks[name] > self._options.max_restarts:
            words = last_error(run.log, run.log_start)
            reason = f"ended by {how} {self._setbacks[name]} times without a newer checkpoint"
            self._fail(run, 1, f"{reason}{words and f'; {words}'}")
            return
        self._live.tell(run.point, "again", how)
        self._waiting.insert(0, run.point)

    def _fail(self, run: Running, status: int, reason: str) -> None:
        progress.write_failure(run.folder, status, reason)
        self._live.tell(run.point, "failed", reason)

    def _start(self, point: Point, folder: epath.Path) -> None:
        slot = min(set(range(self._options.slots)) - {run.slot for run in self._running}, default=0)
        if self._options.launcher is not None:
            command = job(point, folder.parent, self._options)
            log = epath.Path(LOGS) / f"{job_name(point, self._options)}.launcher.log"
            with errors.reading("--launcher", command[0]):
                process, begin = _spawn(command, log)
            self._running.append(Running(point, folder, slot, process, log, begin))
            return
        workdir.make(folder)
        # The user may train there by hand.
        held = None if _is_alive(folder) else workdir_lock.try_lock(folder, SLOT_FILE)
        if held is None:
            self._find(point, folder, slot)
            return
        os.truncate(held, 0)
        progress.forget_failure(folder)
        self._saved.setdefault(point.name, workdir.saved_step(folder))
        variable, log = self._options.slot_variable, folder / LOG_FILE
        process, begin = _spawn(
            [*self._options.trainer, *point.arguments(str(folder))],
            log,
            env=os.environ | ({variable: self._slot_values[slot]} if variable else {}),
            pass_fds=[held] if os.name == "posix" else (),
        )
        holder = {"slot": slot, "pid": process.pid, "host": socket.gethostname()}
        os.write(held, json.dumps(holder).encode())
        os.close(held)
        self._running.append(Running(point, folder, slot, process, log, begin))
        self._live.tell(point, "started", "")

    def _interrupt(self, run: Running) -> bool:
        """Signals a launcher, or a training, which saves; also one of a killed sweep.

        Returns whether it could: not to one that was started by hand, or on another host.
        """
        with contextlib.suppress(OSError, KeyError, ValueError):
            if run.process is not None and self._options.launcher is not None:
                os.killpg(run.process.pid, signal.SIGINT)  # also the script's child processes
            elif run.process is not None:
                run.process.terminate()
            else:
                holder = _holder(run.folder)
                of_sweep = workdir_lock.is_locked(run.folder, SLOT_FILE)
                if not of_sweep or holder.get("host") != socket.gethostname():
                    return False
                os.kill(int(holder["pid"]), signal.SIGTERM)
            return True
        return run.process is not None


def _spawn(
    command: Sequence[str], log: epath.Path, **how: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a process, and returns the size of its log before it."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    workdir.make(log.parent)
    with writing(log), Path(log).open("ab") as out:
        out.write(f"--- started {now}\n".encode())
        begin = out.tell()
    with Path(log).open("ab") as out:
        # In a session of its own: Ctrl-C goes to the sweep, which signals each once.
        how |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, start_new_session=True, **how), begin


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
    try:
        holder = json.loads((folder / SLOT_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe_status(status: int) -> str:
    number = -status if status < 0 else status - 128
    with contextlib.suppress(ValueError):  # of an ordinary status
        return signal.Signals(number).name
    return f"status {status}"


def launcher_words(launcher: str) -> list[str]:
    with errors.reading("--launcher", launcher):
        return shlex.split(launcher)


def job(point: Point, folder: epath.Path, options: SweepOptions) -> list[str]:
    """The launcher's command; a relative folder is made absolute, since jobs run elsewhere."""
    place = str(folder / point.name)
    place = place if is_remote(place) else os.path.abspath(place)
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
