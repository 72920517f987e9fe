"""Digits and CIFAR-10 trained by `vit_jax.train` from the device's memory; one run is killed."""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.drills import run
from benchmarks.on_accelerator.contests import OWN
from benchmarks.on_accelerator.journal import SKIPPED
from benchmarks.on_accelerator.session import Session
from benchmarks.workers import ROOT, WorkerEnded, reason, run_to_end
from vit_jax.data.sources import tfds

KILLED = "digits, killed"
CIFAR10 = ROOT / "data" / "cifar10"  # as TFDS writes it; see docs/data.md
FIELDS = ("input.cache=device", "log.tensorboard=false")
DIGITS = ("deterministic=true", "total.epochs=100", "checkpoint.every_steps=100")
CIFAR10_FIELDS = ("checkpoint.every_steps=2000",)
DRY_FIELDS = (
    "total.epochs=2", "optim.warmup_epochs=1", "checkpoint.every_steps=4", "log.every_steps=2",
    "evals.test.every_steps=none", "model.depth=1", "model.width=16", "model.mlp_dim=16",
    "model.num_heads=2",
)  # fmt: skip


def small_data(session: Session) -> None:
    """Digits; whether that run ends with the same bits when it is killed; CIFAR-10."""
    short = DRY_FIELDS if session.dry else ()
    digits = ["--config=configs/vit_digits.py", *flags((*DIGITS, *short))]
    if session.wanted("digits", OWN.name, 60):
        with session.attempt("digits", OWN.name):
            trained(session, "digits", digits)
    if session.wanted(KILLED, OWN.name, 60):
        with session.attempt(KILLED, OWN.name):
            killed(session, KILLED, digits)
    cifar10(session)


def cifar10(session: Session) -> None:
    """Trains on CIFAR-10 by its recipe, where the data are."""
    case = "cifar10"
    if session.dry or not CIFAR10.is_dir():
        session.write(case, OWN.name, SKIPPED, note=f"no {CIFAR10}, or a dry run")
    elif session.wanted(case, OWN.name, 330):
        with session.attempt(case, OWN.name):
            arguments = flags((*CIFAR10_FIELDS, *unpacked(session)))
            trained(session, case, ["--config=configs/vit_cifar10.py", *arguments])


def unpacked(session: Session) -> tuple[str, ...]:
    """Makes CIFAR-10 an image folder, which can be read without tfds; its fields of the config."""
    folder = session.scratch / "cifar10"
    stored = tfds.find_folder(str(CIFAR10), where="small_data")
    unpack = ["-m", "benchmarks.on_accelerator.unpack", stored, str(folder)]
    run_to_end("unpack", unpack, session.environment, session.wait_secs())
    return ("input.source=image_folder", f"input.data_dir={folder}")


def flags(fields: tuple[str, ...]) -> list[str]:
    """The flags of fields, and of FIELDS."""
    return [f"--config.{field}" for field in (*FIELDS, *fields)]


def trained(session: Session, name: str, arguments: list[str]) -> None:
    """Trains to the end in a new work directory; a row of its speed and accuracy."""
    workdir = session.scratch / "runs" / name
    shutil.rmtree(workdir, ignore_errors=True)
    environment = prepare(session, arguments)
    started = time.monotonic()
    run_to_end("train", command(arguments, workdir), environment, session.wait_secs())
    secs = time.monotonic() - started
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    speeds = [row for row in rows if "speed/images_per_second" in row]
    accuracy = [row["test/accuracy"] for row in rows if "test/accuracy" in row]
    waits = max((row.get("speed/input_wait", 0.0) for row in speeds[1:]), default=0.0)
    by = "" if importlib.util.find_spec("tensorflow") else ", images decoded by Pillow"
    session.write(
        name,
        OWN.name,
        images_per_second=round(speeds[-1]["speed/images_per_second"], 1),
        value=round(accuracy[-1], 4),
        unit="accuracy on test",
        note=f"{rows[-1]['step']} steps in {secs:.1f} s with start and evaluations; longest share "
        f"of waiting for input {waits:.4f}{by}",
    )


def killed(session: Session, case: str, arguments: list[str]) -> None:
    """Kills a run somewhere, starts it again, and compares its bits with the other run's."""
    workdir = session.scratch / "runs" / "killed"
    shutil.rmtree(workdir, ignore_errors=True)
    environment = prepare(session, arguments)
    straight = session.scratch / "runs" / "digits"
    if not bits(straight):  # that was on another machine
        run_to_end("train", command(arguments, straight), environment, session.wait_secs())
    last = max(bits(straight))
    kill_at = random.uniform(0.3, 0.8) * last
    with (session.scratch / "killed.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *command(arguments, workdir)],
            env=os.environ | environment, cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        deadline = time.monotonic() + session.wait_secs()
        while process.poll() is None and last_row(workdir) < kill_at:
            if time.monotonic() > deadline:
                process.kill()
                raise WorkerEnded("train: not done in time", late=True)
            time.sleep(0.02)
        process.kill()
        if process.wait() > 0:
            log.seek(0)
            raise WorkerEnded(f"train: {reason(log.read(), process.returncode)}")
    died_at = last_row(workdir)
    run_to_end("train", command(arguments, workdir), environment, session.wait_secs())
    ours, theirs = bits(straight)[last], bits(workdir)[last]
    same = sum(theirs.get(name) == checksum for name, checksum in ours.items())
    session.write(
        case,
        OWN.name,
        value=int(same == len(ours)),
        unit="same bits",
        note=f"killed after step {died_at} of {last}; {same} of {len(ours)} arrays have the same "
        "bits as those of a run that was not",
    )


def prepare(session: Session, arguments: list[str]) -> dict[str, str]:
    """Variables for the commands; decodes the images first where TensorFlow cannot."""
    environment = session.environment | {"XDG_CACHE_HOME": str(session.scratch / "cache")}
    if importlib.util.find_spec("tensorflow") is None:
        decode = ["-m", "benchmarks.on_accelerator.decode", *arguments]
        run_to_end("decode", decode, environment, session.wait_secs())
    return environment


def command(arguments: list[str], workdir: Path) -> list[str]:
    """The arguments of Python."""
    return ["-m", "vit_jax.train", *arguments, f"--workdir={workdir}"]


def bits(workdir: Path) -> dict[int, dict[str, str]]:
    """Checksums of the arrays of every checkpoint, by its step."""
    workdir = workdir.absolute()
    return {step: run.bits(workdir, step) for step in run.saved(workdir)}


def last_row(workdir: Path) -> int:
    """The last step in metrics.jsonl; 0 if there is none."""
    file = workdir / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    whole = [line for line in lines if line.endswith("}")]
    return json.loads(whole[-1])["step"] if whole else 0
