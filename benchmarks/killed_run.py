"""Trains the digits twice, once without a stop and once killed again and again: the same bits?

    python -m benchmarks.killed_run

Each kill is SIGKILL at a random moment; the same command then starts the run again. Exits with 1
unless losses and the last checkpoint's arrays are the same, bit for bit. The rows, one for each
start, replace those of benchmarks/results/killed_run.csv, which docs/pictures/killed_run.py draws.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from absl import flags

from benchmarks import rows
from benchmarks.drills.run import REPOSITORY, bits
from vit_jax.core import command

CONFIG = "configs/vit_digits.py"
STEPS = 1123

_KILLS = flags.DEFINE_integer("kills", 3, "How often to kill the run.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")


def main(_: list[str]) -> None:
    """Runs both trainings, and writes their rows."""
    moments = random.Random(_SEED.value)
    share = STEPS / (_KILLS.value + 1)
    with tempfile.TemporaryDirectory(prefix="killed_run_") as folder:
        table = [_start(Path(folder) / "straight")]
        for i in range(_KILLS.value):
            step = moments.uniform((i + 0.5) * share, (i + 1.5) * share)
            delay_secs = moments.uniform(0, 1)
            table.append(_start(Path(folder) / "killed", kill=(step, delay_secs)))
        table.append(_start(Path(folder) / "killed"))
        arrays = [bits(Path(folder) / name, STEPS) for name in ("straight", "killed")]
        losses = [_losses(Path(folder) / name) for name in ("straight", "killed")]
    same = sum(arrays[0][name] == checksum for name, checksum in arrays[1].items())
    for row, found in ((table[0], arrays[0]), (table[-1], arrays[1])):
        row["arrays"] = len(found)
        row["checksum"] = f"{zlib.crc32(json.dumps(found, sort_keys=True).encode()):08x}"
    (rows.RESULTS / "killed_run.csv").unlink(missing_ok=True)
    for row in table:
        rows.record("killed_run", "vit_jax configs", "jax", row)
    print(f"{same} of {len(arrays[0])} arrays have the same bits")
    if arrays[0] != arrays[1] or losses[0] != losses[1]:
        sys.exit(1)


def _start(workdir: Path, kill: tuple[float, float] | None = None) -> dict[str, object]:
    """Starts a run; `kill`: from which step on, and how many seconds after that step's row."""
    arguments = ["--config", CONFIG, "--workdir", str(workdir)]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "vit_jax", "train", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        resumed = 0
        for line in process.stdout or ():
            if found := re.match(r"resumed .* step ([\d,]+)", line):
                resumed = int(found[1].replace(",", ""))
            found = re.match(r"step ([\d,]+)/", line)
            if found and kill and int(found[1].replace(",", "")) >= kill[0]:
                time.sleep(kill[1])
                process.kill()
                break
    if not kill and process.returncode:
        raise RuntimeError(f"{workdir} ended with {process.returncode}")
    losses = {step: loss for step, loss in _losses(workdir).items() if step > resumed}
    return {
        "run": workdir.name,
        "ended": "killed" if kill else "finished",
        "resumed_from": resumed,
        "losses": " ".join(f"{step}:{loss:.4f}" for step, loss in losses.items()),
        "arrays": "",
        "checksum": "",
    }


def _losses(workdir: Path) -> dict[int, float]:
    """Logged losses by step; the last line of a killed run may be torn."""
    losses = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "train/loss" in row:
            losses[row["step"]] = row["train/loss"]
    return losses


if __name__ == "__main__":
    command.run(main)
