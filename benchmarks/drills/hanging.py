"""Reads that hang, as on a lost network disk: does the run say where, and end?"""

import os
import random
import socket
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.drills.run import PATIENCE_SECS, USER_ERROR, Outcome, Started

TIMEOUT_SECS = 10
SLACK_SECS = 60  # until the hanging image is read, plus the exit


def hanging(folder: Path, chance: random.Random) -> Outcome:
    """Replaces an image that was read before with a pipe that nobody writes to."""
    for kind in ("a", "b"):
        (folder / "train" / kind).mkdir(parents=True)
        for i in range(8):
            image = Image.fromarray(np.full((8, 8, 3), 30 * i, np.uint8))
            image.save(folder / "train" / kind / f"{i}.png")
    more = [
        "--config.input.source=image_folder", f"--config.input.data_dir={folder}",
        "--config.input.num_examples=none", "--config.input.num_classes=none",
        "--config.evals.test.split=train", f"--config.input.timeout_secs={TIMEOUT_SECS}",
    ]  # fmt: skip
    with Started(folder / "run", steps=100_000, processes=1, more=more) as run:
        run.wait_for("^step ")
        pipe = chance.choice(sorted(folder.glob("train/*/*.png")))
        pipe.unlink()
        os.mkfifo(pipe)
        began_at = time.monotonic()
        (status, *left_over) = run.end(PATIENCE_SECS)
        secs = time.monotonic() - began_at
    output = "\n".join(run.lines)
    failures = []
    named = all(name in output for name in (str(pipe), socket.gethostname()))
    if status != USER_ERROR or left_over or not named:
        failures.append(f"ended with {status}; file and host named: {named}; {output[-500:]}")
    if secs > TIMEOUT_SECS + SLACK_SECS:
        failures.append(f"ended after {secs:.0f} s")
    return Outcome(1, failures, f"ended after {secs:.1f} s with input.timeout_secs={TIMEOUT_SECS}")
