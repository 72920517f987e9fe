"""CPU and wall time from the start of a command to its first words, in medians.

    python -m benchmarks.start_up --starts help,mistake,import,first,second

help: --help of each command; mistake: a config with a misspelt field; import: models and weights;
first: a training of configs/vit_digits.py whose programs are not in the compilation cache, second:
one whose are; each to its first line and to its first step. The file system's cache is warm.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from absl import app, flags

from benchmarks import rows

FLAGS = flags.FLAGS
COMMANDS = (
    "train", "evaluate", "predict", "export", "convert", "preview", "prepare", "plan", "sweep",
    "report", "verify",
)  # fmt: skip
STARTS = ("help", "mistake", "import", "first", "second")
TRAIN = ("-m", "vit_jax.train", "--config", "configs/vit_digits.py")
CODE = "vit_jax/core vit_jax/models vit_jax/config.py vit_jax/weights vit_jax/run vit_jax/train.py"


class Costs(NamedTuple):
    """Times from the start of a process."""

    wall_secs: float
    cpu_secs: float


def to_end(*arguments: str) -> Costs:
    """Costs of Python with these arguments, whatever its exit status."""
    started = time.monotonic()
    null = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *arguments], stdout=null, stderr=null)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # reaped
    return Costs(time.monotonic() - started, used.ru_utime + used.ru_stime)


def to_lines(starts: list[str], *arguments: str, **env: str) -> dict[str, Costs]:
    """Costs until a line that starts so, for each of `starts`; after the last it is killed."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | env
    )
    assert process.stdout is not None
    found = {}
    for line in process.stdout:
        for start in starts:
            if line.startswith(start) and start not in found:
                found[start] = Costs(time.monotonic() - started, _cpu_secs(process.pid))
        if len(found) == len(starts):
            break
    process.kill()
    process.wait()
    return found


def _cpu_secs(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(what: str, scratch: str) -> Iterator[tuple[str, Costs]]:
    """(name, costs) of one run of each start that `what` stands for."""
    workdir = tempfile.mkdtemp(dir=scratch)
    if what == "help":
        for command in COMMANDS:
            yield f"{command} --help", to_end("-m", "vit_jax", command, "--help")
    elif what == "mistake":
        wrong = (f"--workdir={workdir}", "--config.optim.lrr=1")
        yield "a mistake in a config", to_end(*TRAIN, *wrong)
    elif what == "import":
        yield "import jax", to_end("-c", "import jax")
        yield "import flax.nnx", to_end("-c", "import flax.nnx")
        yield "import models, weights", to_end("-c", "from vit_jax import models, weights")
    else:
        cache = scratch if what == "second" else workdir
        given = (f"--workdir={workdir}", "--config.log.every_steps=1")
        env = {"JAX_COMPILATION_CACHE_DIR": f"{cache}/xla"}
        if what == "second" and not os.path.exists(env["JAX_COMPILATION_CACHE_DIR"]):
            list(to_lines(["step 1/"], *TRAIN, f"--workdir={workdir}/0", *given[1:], **env))
        for start, costs in to_lines(["data", "step 1/"], *TRAIN, *given, **env).items():
            to = {"data": "line", "step 1/": "step"}[start]
            yield f"{what} training to its first {to}", costs


def main(_: list[str]) -> None:
    """Appends a row for each start."""
    with tempfile.TemporaryDirectory() as scratch:
        for what in FLAGS.starts:
            runs: dict[str, list[Costs]] = {}
            for _ in range(FLAGS.runs):
                for name, costs in measure(what, scratch):
                    runs.setdefault(name, []).append(costs)
            for name, each in runs.items():
                row = {
                    "what": name,
                    "runs": len(each),
                    "cpu_seconds": round(statistics.median(c.cpu_secs for c in each), 2),
                    "seconds": round(statistics.median(c.wall_secs for c in each), 2),
                    "load_average": round(os.getloadavg()[0], 1),
                }
                rows.record("start_up", CODE, "jax flax", row, keep=FLAGS.record)


if __name__ == "__main__":
    flags.DEFINE_list("starts", list(STARTS), "Which.")
    flags.register_validator(
        "starts", lambda starts: set(starts) <= set(STARTS), f"give some of {','.join(STARTS)}"
    )
    flags.DEFINE_integer("runs", 5, "Of each; a row has the medians.", lower_bound=1)
    flags.DEFINE_bool("record", True, "Append to benchmarks/results/start_up.csv.")
    app.run(main)
