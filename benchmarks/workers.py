"""The process of a contender: started, given orders, and ended, whatever it does."""

import dataclasses
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import tuned_cpu
from benchmarks.contenders import KEPT, MKL, PAGES, Shape, split
from vit_jax import models
from vit_jax.core import machine

CLOSING_SECS = 15
SHOWN_CHARACTERS = 2000  # of the errors of a process that fails
ROOT = Path(__file__).parents[1]


class WorkerEnded(RuntimeError):
    """A process has ended, or was ended for being late; the message is one line.

    status: its exit status; None if it was late.
    """

    def __init__(self, message: str, *, status: int | None = None, late: bool = False):
        super().__init__(message)
        self.status, self.late = status, late


class LineProcess:
    """A program of this project that answers in lines of JSON, whatever else it prints."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        python: str = sys.executable,
    ):
        """`arguments` of Python; `environment`: variables in addition to this process's."""
        self.name = name
        # A file: a pipe that nobody empties would stop the process.
        # Read when the process has ended, so not in a `with`.
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=os.environ | environment,
            cwd=ROOT,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def read(self, timeout_secs: float | None = None) -> dict[str, Any]:
        """The next answer. WorkerEnded if the process ends, or is ended for being late."""
        try:
            line = self._lines.get(timeout=timeout_secs)
        except queue.Empty:
            self.kill()
            late = f"{self.name}: no answer in {timeout_secs:.0f} s"
            raise WorkerEnded(late, late=True) from None
        if not line:
            self._lines.put("")
            status = self._process.wait()
            self._stderr.seek(0)
            said = self._stderr.read()
            print(f"{self.name}: {said[-SHOWN_CHARACTERS:]}", file=sys.stderr)
            raise WorkerEnded(f"{self.name}: {reason(said, status)}", status=status)
        return json.loads(line)

    def ask(self, line: str, timeout_secs: float | None = None) -> dict[str, Any]:
        """The answer to an order; WorkerEnded as in `read`."""
        assert self._process.stdin
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._reader.join()
        return self.read(timeout_secs)

    def close(self) -> None:
        """Ends the process once it has done what it was asked for; may be called twice."""
        try:
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(CLOSING_SECS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.kill()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()

    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def _read_lines(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):  # packages print too
                self._lines.put(line)
        self._lines.put("")


class Worker(LineProcess):
    """A contender in its process.

    name: a module of benchmarks/contenders, and SETTINGS behind it. fields: of a config, such as
    "model.scan=true"; for `own` alone.
    work: "train" or "forward". python: its interpreter. environment: further variables.

    Attributes:
      ready: its first answer, see train_step_worker.py; empty until `wait_until_ready`.
      steps: wall and CPU seconds of every step so far.
      product_rates: FLOP/s of large matrix products, measured in the same turns.
      peak_bytes: most memory in use.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        dtype: str,
        *,
        fields: Sequence[str] = (),
        work: str = "train",
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
    ):
        module, settings = split(name)
        self.ready: dict[str, Any] = {}
        self.steps: dict[str, list[float]] = {"wall_secs": [], "cpu_secs": []}
        self.product_rates: list[float] = []
        self.peak_bytes = 0
        variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | (environment or {})
        # Also where the shell has set it, as scripts/ do: a contender has what its name says.
        pages = module == "own" or PAGES in settings  # vit_jax.train has them by itself
        variables[machine.TUNABLES] = machine.HUGE_PAGES if pages else ""
        if KEPT in settings:
            variables |= tuned_cpu.KEPT_MEMORY
        if MKL in settings:
            variables["LD_PRELOAD"] = tuned_cpu.mkl_library()
        process_settings = (PAGES, KEPT, MKL)
        arguments = [
            "-m", "benchmarks.train_step_worker", f"--contender={module}",
            f"--shape={json.dumps(dataclasses.asdict(shape))}", f"--dtype={dtype}",
            f"--work={work}", *(f"--field={field}" for field in fields),
            *(f"--setting={setting}" for setting in settings if setting not in process_settings),
        ]  # fmt: skip
        super().__init__(name, arguments, variables, python)

    def wait_until_ready(self, timeout_secs: float | None = None) -> None:
        """Waits until it is built and compiled and has done its first step."""
        self.ready = self.ready or self.read(timeout_secs)

    def turn(self, steps: int, *, at_once: bool = False, timeout_secs: float | None = None) -> None:
        """Runs some steps and a few matrix products.

        at_once: wait for the last step only, as a training does, instead of for each.
        """
        answer = self.ask(f"{'run' if at_once else 'steps'} {steps}", timeout_secs)
        for kind, secs in self.steps.items():
            secs.extend(answer[kind])
        self.peak_bytes = answer["peak_bytes"]
        answer = self.ask("products 3", timeout_secs)
        self.product_rates += [answer["flops"] / secs for secs in answer["wall_secs"]]

    def forget(self) -> None:
        """Forgets the steps so far, before turns with another contender."""
        for secs in self.steps.values():
            secs.clear()


def run_to_end(
    name: str, arguments: Sequence[str], environment: dict[str, str], timeout_secs: float
) -> str:
    """The output of a program of Python. WorkerEnded if it fails or is late."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | environment,
            cwd=ROOT,
            timeout=timeout_secs,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerEnded(f"{name}: not done in {timeout_secs:.0f} s", late=True) from error
    if done.returncode:
        print(f"{name}: {done.stderr[-SHOWN_CHARACTERS:]}", file=sys.stderr)
        said = reason(done.stderr, done.returncode)
        raise WorkerEnded(f"{name}: {said}", status=done.returncode)
    return done.stdout


def reason(stderr: str, status: int) -> str:
    """Why a process ended, in a line: of the last traceback the error, else the last line."""
    traces = stderr.split("Traceback (most recent call last):\n")
    lines = [line for line in traces[-1].splitlines() if line.strip()]
    if len(traces) > 1:
        errors = [line for line in lines if re.match(r"[\w.]+(: |$)", line)]
        return errors[0] if errors else lines[-1]
    died = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    said = next((line for line in lines if re.match(r"(error|fatal)\b", line, re.I)), "")
    return f"{died}; {said or lines[-1]}" if lines else died


def flops(shape: Shape, work: str = "train") -> float:
    """FLOPs of the matrix products of a step: forward, and twice that backward."""
    forward = float(models.info(**shape.of_models()).forward_flops * shape.batch)
    return 3 * forward if work == "train" else forward
