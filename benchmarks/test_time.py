"""CPU minutes and wall time of the quick tests and of the slow ones.

    python -m benchmarks.test_time

Runs pytest as scripts/test.sh does, once for the quick tests and once for the slow ones;
--suites=all runs both together, as SHARE=all .ci/run. CPU time is that of pytest and of all
processes it waited for, by getrusage; it depends little on the machine's other load, unlike wall
time. Appends a row for each suite to benchmarks/results/test_time.csv.
"""

import os
import re
import resource
import subprocess
import sys
import time
from typing import NamedTuple

from absl import flags

from benchmarks import rows
from vit_jax.core import command
from vit_jax.core.errors import UserError

SUITES = {
    "quick": "not slow and not outside",
    "slow": "slow and not outside",
    "all": "not outside",
}
SCHEDULE = ("--dist=loadfile", "--no-loadscope-reorder")  # scripts/environment.sh's

_SUITES = flags.DEFINE_list("suites", ["quick", "slow"], "Which: quick, slow, all.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Processes of pytest-xdist.")
_RECORD = flags.DEFINE_bool("record", True, "Whether to append the rows to the results.")


class Measurement(NamedTuple):
    """Times of a process and its children; the end of its output."""

    wall_secs: float
    cpu_secs: float
    status: int
    last_line: str


def main(arguments: list[str]) -> None:
    """Measures, prints and records; `arguments` go on to pytest, such as files."""
    unknown = [name for name in _SUITES.value if name not in SUITES]
    if unknown:
        raise UserError(f"--suites: there is no {unknown[0]!r}. There are: {', '.join(SUITES)}.")
    os.environ["JAX_PLATFORMS"] = "cpu"  # the tests simulate their devices
    for name in _SUITES.value:
        pytest = [sys.executable, "-m", "pytest", "-q", f"-n{_WORKERS.value}", *SCHEDULE]
        taken = measure([*pytest, "-m", SUITES[name], *arguments])
        row = {
            "suite": name,
            "workers": _WORKERS.value,
            **outcomes(taken.last_line),
            "cpu_minutes": round(taken.cpu_secs / 60, 1),
            "wall_minutes": round(taken.wall_secs / 60, 1),
            "load_average": round(os.getloadavg()[0], 1),
        }
        keep = _RECORD.value and not taken.status
        rows.record("test_time", "vit_jax tests", "jax pytest", row, keep=keep)
        if taken.status:
            raise UserError(f"pytest ended with status {taken.status}: {taken.last_line}")


def measure(program: list[str]) -> Measurement:
    """Runs a program, showing its output."""
    before, started = _children_secs(), time.perf_counter()
    last_line = ""
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
    wall_secs = time.perf_counter() - started
    return Measurement(wall_secs, _children_secs() - before, process.returncode, last_line)


def outcomes(line: str) -> dict[str, int]:
    """Numbers of tests by outcome in pytest's last line: "3 passed, 1 skipped in 2.0s"."""
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", line)}
    return {word: numbers.get(word, 0) for word in ("passed", "skipped", "failed")}


def _children_secs() -> float:
    """CPU seconds of awaited child processes and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    command.run(main, positional=True)
