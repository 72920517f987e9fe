"""A tiny training run in its own processes, for a drill to watch, disturb and restart."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from vit_jax.store import checkpoint_dir

REPOSITORY = Path(__file__).parents[2]
DEVICES_OF_A_PROCESS = 2
PATIENCE_SECS = 600  # for what takes seconds on an idle machine
ORPHAN_SECS = 90  # for all processes to end after one of them did
PEER_TIMEOUT_SECS = 20
PREEMPTED, PEER_LOST, USER_ERROR = 75, 76, 1  # exit statuses

# Enables everything that draws random numbers or carries state between steps.
RUN = [
    "--config", "configs/vit_digits.py",
    "--config.model.depth=2", "--config.model.width=16", "--config.model.mlp_dim=32",
    "--config.model.num_heads=2", "--config.model.dropout=0.1",
    "--config.model.stochastic_depth=0.2",
    "--config.loss.mixup=0.2", "--config.loss.cutmix=1", "--config.optim.ema_decay=0.9",
    "--config.input.cache=ram",
    "--config.input.preprocess=decode|pad_crop(8, 1)|randaugment(2, 15)|random_erasing(0.25)",
    "--config.input.batch_size=32", "--config.total.epochs=none",
    "--config.optim.warmup_epochs=none", "--config.optim.warmup_steps=5",
    "--config.evals.test.every_steps=20", "--config.checkpoint.every_steps=10",
    "--config.log.every_steps=5", "--config.log.tensorboard=false",
    f"--peer_timeout_secs={PEER_TIMEOUT_SECS}",
]  # fmt: skip


class Outcome(NamedTuple):
    """A drill's outcome: number of rounds, their failures, and the worst figure."""

    rounds: int
    failures: list[str]
    worst: str


class Started:
    """All processes of one start of a run; a context manager that ends those still alive.

    workdir: the run's directory. steps: its length. processes: their number, each with
      DEVICES_OF_A_PROCESS simulated devices. more: further flags, which override RUN's.
    """

    def __init__(self, workdir: Path, *, steps: int, processes: int, more: Sequence[str] = ()):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            coordinator = f"localhost:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "vit_jax.train", *RUN, f"--config.total.steps={steps}"]
        command += ["--workdir", str(workdir), *more]
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONUNBUFFERED": "1",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
            f"--xla_force_host_platform_device_count={DEVICES_OF_A_PROCESS}",
        }
        self.workdir = workdir
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._all = [
            subprocess.Popen(
                [*command, *_place(coordinator, processes, index)],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # so that its children can be found
            )
            for index in range(processes)
        ]
        self._readers = [threading.Thread(target=self._read, args=[p]) for p in self._all]
        for reader in self._readers:
            reader.start()

    def wait_for(self, pattern: str) -> bool:
        """Waits until a line matches; False if all processes end first."""
        matched = lambda: any(re.search(pattern, line) for line in self.lines)
        with self._said:
            self._said.wait_for(lambda: matched() or not self.alive(), timeout=PATIENCE_SECS)
            return matched()

    def alive(self) -> bool:
        """Whether any process is still running."""
        return any(map(self.running, range(len(self._all))))

    def running(self, process_id: int) -> bool:
        """Whether this process is still running."""
        return self._all[process_id].poll() is None

    def send(self, process_id: int, number: signal.Signals) -> None:
        """Sends a signal to one process; does nothing if it has ended."""
        self._all[process_id].send_signal(number)

    def end(self, timeout_secs: float) -> list[int | None]:
        """Exit statuses of the processes; None for one that was killed at the timeout."""
        deadline = time.monotonic() + timeout_secs
        statuses: list[int | None] = []
        for process in self._all:
            try:
                statuses.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                statuses.append(None)
        if any(self._left_over(process) for process in self._all):
            statuses.append(None)
        self._kill()
        return statuses

    def _left_over(self, process: subprocess.Popen) -> bool:
        """Whether a child of an ended process is still running."""
        if process.poll() is None:
            return False
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _kill(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def _read(self, process: subprocess.Popen) -> None:
        for line in process.stdout or ():
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        process.wait()
        with self._said:
            self._said.notify_all()


def finish(workdir: Path, *, steps: int, processes: int, more: Sequence[str] = ()) -> list[str]:
    """Runs to the end and returns the output; RuntimeError if the run fails."""
    with Started(workdir, steps=steps, processes=processes, more=more) as run:
        statuses = run.end(PATIENCE_SECS)
    if statuses != [0] * processes:
        raise RuntimeError(f"ended with {statuses}:\n" + "\n".join(run.lines[-30:]))
    return run.lines


def saved(workdir: Path) -> list[int]:
    """Steps that have a checkpoint."""
    return checkpoint_dir.steps(workdir / "checkpoints")


def bits(workdir: Path, step: int) -> dict[str, str]:
    """Checksums of a checkpoint's arrays, by name."""
    description = checkpoint_dir.read_description(workdir / "checkpoints" / str(step))
    return {name: array["checksum"] for name, array in description["arrays"].items()}


def losses(workdir: Path) -> dict[int, float]:
    """Logged losses by step."""
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def _place(coordinator: str, processes: int, index: int) -> list[str]:
    if processes == 1:
        return []
    flags = {"coordinator": coordinator, "num_processes": processes, "process_id": index}
    return [f"--{name}={value}" for name, value in flags.items()]
