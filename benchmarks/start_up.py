"""CPU and wall time, and memory, from the start of a command to its first words, in medians.

    python -m benchmarks.start_up --starts help,mistake,import,first,second,folder

help: --help of each command; mistake: a config with a misspelt field; import: models and weights;
first: a training of configs/vit_digits.py whose programs are not in the compilation cache, second:
one whose are; each to its first line and to its first step; folder: 200,000 empty images in 1,000
classes, in a program that opens them: listed, also where the index is written, and from the index.
The file system's cache is warm.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags

from benchmarks import costs, rows
from benchmarks.costs import ProcessCosts
from vit_jax.__main__ import COMMANDS

FLAGS = flags.FLAGS
STARTS = ("help", "mistake", "import", "first", "second", "folder")
TRAIN = ("-m", "vit_jax.train", "--config", "configs/vit_digits.py")
CODE = (
    "vit_jax/core vit_jax/models vit_jax/data vit_jax/config.py vit_jax/weights vit_jax/run "
    "vit_jax/train.py"
)


IMPORT = "from vit_jax.data.sources import folder_index, image_folder"
OPEN = f"""
import sys
{IMPORT}
folder_index.SETTLED_SECS, folder_index.MIN_FILES = 0, int(sys.argv[2])
image_folder.ImageFolder(image_folder.Request("train", sys.argv[1]))
"""


def to_lines(starts: list[str], *arguments: str, **env: str) -> dict[str, ProcessCosts]:
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
                used = _cpu_secs(process.pid), costs.status_bytes("VmHWM", process.pid)
                found[start] = ProcessCosts(time.monotonic() - started, *used)
        if len(found) == len(starts):
            break
    process.kill()
    process.wait()
    return found


def _cpu_secs(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _create_images(folder: Path) -> None:
    for c in range(1000):
        (folder / "train" / f"n{c:08}").mkdir(parents=True)
        for i in range(200):
            (folder / "train" / f"n{c:08}" / f"n{c:08}_{i}.JPEG").touch()


def measure(what: str, scratch: str) -> Iterator[tuple[str, ProcessCosts]]:
    """(name, costs) of one run of each start that `what` stands for."""
    workdir = tempfile.mkdtemp(dir=scratch)
    if what == "help":
        for command in COMMANDS:
            yield (
                f"{command} --help",
                costs.of_python("-m", "vit_jax", command, "--help", quiet=True),
            )
    elif what == "mistake":
        wrong = (f"--workdir={workdir}", "--config.optim.lrr=1")
        yield "a mistake in a config", costs.of_python(*TRAIN, *wrong, expected=1, quiet=True)
    elif what == "import":
        yield "import jax", costs.of_python("-c", "import jax", quiet=True)
        yield "import flax.nnx", costs.of_python("-c", "import flax.nnx", quiet=True)
        code = "from vit_jax import models, weights; weights.load"
        yield "import models, weights", costs.of_python("-c", code, quiet=True)
    elif what == "folder":
        folder = Path(scratch, "images")
        if not folder.exists():
            _create_images(folder)
        for index in folder.glob(".vit_jax-*"):
            index.unlink()
        yield "import image_folder", costs.of_python("-c", IMPORT, quiet=True)
        for how, min_files in (("listed", 10**9), ("listed and indexed", 1), ("by the index", 1)):
            yield (
                f"200,000 images {how}",
                costs.of_python("-c", OPEN, str(folder), str(min_files), quiet=True),
            )
    else:
        cache = scratch if what == "second" else workdir
        given = (f"--workdir={workdir}", "--config.log.every_steps=1")
        env = {"JAX_COMPILATION_CACHE_DIR": f"{cache}/xla"}
        if what == "second" and not os.path.exists(env["JAX_COMPILATION_CACHE_DIR"]):
            list(to_lines(["step 1/"], *TRAIN, f"--workdir={workdir}/0", *given[1:], **env))
        for start, used in to_lines(["data", "step 1/"], *TRAIN, *given, **env).items():
            to = {"data": "line", "step 1/": "step"}[start]
            yield f"{what} training to its first {to}", used


def main(_: list[str]) -> None:
    """Appends a row for each start."""
    with tempfile.TemporaryDirectory() as scratch:
        for what in FLAGS.starts:
            runs: dict[str, list[ProcessCosts]] = {}
            for _ in range(FLAGS.runs):
                for name, used in measure(what, scratch):
                    runs.setdefault(name, []).append(used)
            for name, each in runs.items():
                row = {
                    "what": name,
                    "runs": len(each),
                    "cpu_seconds": round(statistics.median(c.cpu_secs for c in each), 2),
                    "seconds": round(statistics.median(c.wall_secs for c in each), 2),
                    "peak_mb": round(statistics.median(c.peak_bytes for c in each) / 2**20),
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
