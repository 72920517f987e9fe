"""Two published recipes for CIFAR-10 to their end, by `vit_jax.train` from the device's memory.

Their tables: 93.58 % after 100 passes of SPT's plain ViT (arXiv 2112.13492), and 91.38 % after 200
epochs of ViT-Lite-7/4, the best of several (arXiv 2104.05704). A run that time is too short for is
saved, gives a row of what it has reached, and goes on in the next one, if --scratch is still there.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.on_accelerator.contests import OWN
from benchmarks.on_accelerator.journal import MEASURED, SKIPPED
from benchmarks.on_accelerator.session import Session
from benchmarks.on_accelerator.small_data import CIFAR10, command, flags, prepare, unpacked
from benchmarks.workers import ROOT, WorkerEnded, reason

CONFIGS = {"spt_vit, CIFAR-10": "spt_vit.py", "vit_lite 7/4, CIFAR-10": "vit_lite.py"}
SAVING_SECS = 30  # for the end of a run that is stopped


def published(session: Session) -> None:
    """A row for each recipe."""
    for case, config in CONFIGS.items():
        if session.dry or not CIFAR10.is_dir():
            session.write(case, OWN.name, SKIPPED, note=f"no {CIFAR10}, or a dry run")
        elif session.wanted(case, OWN.name, 3 * SAVING_SECS):
            with session.attempt(case, OWN.name):
                fields = flags(("checkpoint.every_steps=2000", *unpacked(session)))
                train(session, case, [f"--config=configs/{config}", *fields])


def train(session: Session, case: str, arguments: list[str]) -> None:
    """Begins or goes on, until it is done or the part's time is over."""
    workdir = session.scratch / "published" / Path(arguments[0]).stem
    environment = os.environ | prepare(session, arguments)
    workdir.mkdir(parents=True, exist_ok=True)
    with (session.scratch / "published.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *command(arguments, workdir)],
            env=environment, cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            process.wait(max(1.0, session.left_secs() - SAVING_SECS))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # it saves the step under way
        is_done = process.wait(2 * SAVING_SECS) == 0
        log.seek(0)
        said = log.read()
    rows = metrics(workdir)
    if not rows:
        raise WorkerEnded(f"train: {reason(said, process.returncode)}")
    accuracies = [(row["test/accuracy"], row["step"]) for row in rows if "test/accuracy" in row]
    last, best = (accuracies[-1][0], max(accuracies)) if accuracies else (None, None)
    speeds = [row["speed/images_per_second"] for row in rows if "speed/images_per_second" in row]
    session.write(
        case,
        OWN.name,
        MEASURED if is_done else SKIPPED,
        images_per_second=round(speeds[-1], 1) if speeds else None,
        value=last,
        unit="accuracy on test, last",
        note=f"step {rows[-1]['step']}; best (accuracy, step): {best}",
    )


def metrics(workdir: Path) -> list[dict[str, float]]:
    """The rows of a run's log; none before it has begun."""
    file = workdir / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
