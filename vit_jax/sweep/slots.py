"""Runs the points in slots: a limited number of processes, each restarted until it has ended.

A process inherits a locked file of its work directory, so the lock is held exactly as long as the
process lives, even if the sweep was killed. A restarted sweep leaves running processes alone, waits
for them, and counts them as taking a slot.
"""

import contextlib
import datetime
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from vit_jax.core import errors
from vit_jax.core.signals import StopRequest
from vit_jax.store import workdir, workdir_lock
from vit_jax.sweep import progress
from vit_jax.sweep.grid import Point

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOG_FILE = "log.txt"
SLOT_FILE = ".slot"  # locked while a training of a sweep lives; names it
AGAIN = (errors.EXIT_PREEMPTED, errors.EXIT_PEER_LOST)
POLL_SECS = 0.2
MAX_REASON = 1000  # characters


class Task(NamedTuple):
    """A point to run: its command and its work directory."""

    point: Point
    folder: epath.Path
    command: Sequence[str]


class Running(NamedTuple):
    """A running task; process None: started by another sweep, or by hand."""

    task: Task
    slot: int
    process: subprocess.Popen[bytes] | None
    log_start: int = 0  # bytes of the log before this start


class Slots:
    """Runs tasks, at most `number` at a time.

    Args:
      done: whether a task has reached its end, by its work directory.
      tell: called with each event: (task, "started" | "again" | "finished" | "failed" | "found",
        reason).
      variable: the environment variable that gets the slot's number, from 0.
      max_restarts: the most restarts of a task in a row without a newer checkpoint.
    """

    def __init__(
        self,
        number: int,
        *,
        done: Callable[[Task], bool],
        tell: Callable[[Task, str, str], None],
        variable: str | None = None,
        max_restarts: int = 5,
    ):
        self._number, self._variable = number, variable
        self._done, self._tell, self._max_restarts = done, tell, max_restarts
        self._waiting: list[Task] = []
        self._running: list[Running] = []
        self._setbacks: dict[str, int] = {}  # starts without a newer checkpoint, by name
        self._saved: dict[str, int] = {}

    @property
    def running(self) -> set[str]:
        """Names of the running points."""
        return {run.task.point.name for run in self._running}

    def run(self, tasks: Sequence[Task], stop: StopRequest) -> Iterator[None]:
        """Yields regularly until all tasks have ended, or were asked to end by `stop`."""
        self._waiting = list(tasks)
        self._find_running()
        signalled = False
        while self._running or (self._waiting and not stop):
            for run in list(self._running):
                self._look(run, stopping=bool(stop))
            if stop and not signalled:
                signalled = True
                for run in self._running:
                    _terminate(run)
            while not stop and self._waiting and len(self._running) < self._number:
                self._start(self._waiting.pop(0))
            yield
            time.sleep(POLL_SECS)

    def _find_running(self) -> None:
        """Gives tasks that still run their slots, before others are started."""
        for task in list(self._waiting):
            if _is_alive(task.folder):
                self._waiting.remove(task)
                self._running.append(Running(task, _holder(task.folder).get("slot", -1), None))
                self._tell(task, "found", "")

    def _look(self, run: Running, *, stopping: bool) -> None:
        task, process = run.task, run.process
        if process is None:
            if not _is_alive(task.folder):
                self._running.remove(run)
                if self._done(task):
                    self._tell(task, "finished", "")
                else:
                    self._waiting.insert(0, task)
            return
        status = process.poll()
        if status is None:
            return
        self._running.remove(run)
        if status == errors.EXIT_OK:
            self._tell(task, "finished", "")
        elif stopping:
            self._tell(task, "stopped", "")
        elif status in AGAIN or status < 0 or status > 128:
            self._again(run, _spell(status))
        else:
            self._fail(task, status, last_words(task.folder, run.log_start))

    def _again(self, run: Running, how: str) -> None:
        """Queues a task again, unless it was restarted too often without progress."""
        task, name = run.task, run.task.point.name
        saved = progress.saved_step(task.folder)
        further = saved > self._saved.get(name, 0)
        self._saved[name] = saved
        self._setbacks[name] = 0 if further else self._setbacks.get(name, 0) + 1
        if self._setbacks[name] > self._max_restarts:
            words = last_words(task.folder, run.log_start)
            reason = f"ended by {how} {self._setbacks[name]} times without a newer checkpoint"
            self._fail(task, 1, f"{reason}{f'; {words}' if words else ''}")
            return
        self._tell(task, "again", how)
        self._waiting.insert(0, task)

    def _fail(self, task: Task, status: int, reason: str) -> None:
        progress.write_failure(task.folder, status, reason or _spell(status))
        self._tell(task, "failed", reason or _spell(status))

    def _start(self, task: Task) -> None:
        workdir.make(task.folder)
        slot = min(set(range(self._number)) - {run.slot for run in self._running}, default=0)
        # The user may train there by hand.
        held = None if _is_alive(task.folder) else _take(task.folder, slot)
        if held is None:
            self._running.append(Running(task, slot, None))
            self._tell(task, "found", "")
            return
        progress.forget_failure(task.folder)
        self._saved.setdefault(task.point.name, progress.saved_step(task.folder))
        environment = os.environ | ({self._variable: str(slot)} if self._variable else {})
        with _open_log(task.folder) as log:
            start = log.tell()
            # In a session of its own: Ctrl-C goes to the sweep, which signals its trainings once.
            process = subprocess.Popen(
                task.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=held,
                start_new_session=True,
            )
        for file_number in held:
            os.pwrite(file_number, json.dumps(_described(slot, process.pid)).encode(), 0)
            os.close(file_number)
        self._running.append(Running(task, slot, process, start))
        self._tell(task, "started", "")


def _open_log(folder: epath.Path) -> BinaryIO:
    """Opens the log at its end, after a line with the time. UserError if it cannot be written."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        log = (Path(folder) / LOG_FILE).open("ab")
        log.write(f"--- started {now}\n".encode())
        log.flush()
    except OSError as error:
        raise workdir.unwritable(folder, error) from error
    return log


def last_words(folder: epath.Path, start: int = 0) -> str:
    """The message at the end of a log: from "error:" on if present, else its last line."""
    with (folder / LOG_FILE).open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    words = "\n".join(lines[begins[-1] :]) if begins else (lines[-1] if lines else "")
    return words.removeprefix("error: ")[:MAX_REASON]


def _take(folder: epath.Path, slot: int) -> list[int] | None:
    """File numbers of the locked file, [] where nothing can be locked; None if it is held."""
    if fcntl is None:
        return []
    file = os.open(folder / SLOT_FILE, os.O_RDWR | os.O_CREAT, mode=0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # this file system has no locks
        pass
    os.truncate(file, 0)
    return [file]


def _described(slot: int, pid: int) -> dict[str, int | str]:
    return {"slot": slot, "pid": pid, "host": socket.gethostname()}


def _is_alive(folder: epath.Path) -> bool:
    """Whether a training runs in the work directory."""
    # A sweep's training takes the other lock only once it has begun; this check must not collide.
    return workdir_lock.is_locked(folder, SLOT_FILE) or workdir_lock.is_locked(folder)


def _holder(folder: epath.Path) -> dict[str, Any]:
    """The holder of the slot's file; {} if unknown."""
    try:
        holder = json.loads((folder / SLOT_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _terminate(run: Running) -> None:
    """Sends SIGTERM, on which a training saves; also to a training of a killed sweep."""
    if run.process is not None:
        run.process.terminate()
        return
    holder = _holder(run.task.folder)
    of_sweep = workdir_lock.is_locked(run.task.folder, SLOT_FILE)
    if of_sweep and holder.get("host") == socket.gethostname():
        with contextlib.suppress(OSError, KeyError, ValueError):
            os.kill(int(holder["pid"]), signal.SIGTERM)


def _spell(status: int) -> str:
    """An exit status in words: "status 75" or "SIGKILL"."""
    number = -status if status < 0 else status - 128
    with contextlib.suppress(ValueError):
        if status < 0 or status > 128:
            return signal.Signals(number).name
    return f"status {status}"
