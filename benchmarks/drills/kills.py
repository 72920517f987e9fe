"""Kills at random moments, each followed by a restart: does the run end as if undisturbed?"""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.drills.run import (
    PATIENCE_SECS,
    PEER_LOST,
    PREEMPTED,
    Outcome,
    Started,
    bits,
    finish,
    losses,
    saved,
)

STEPS_PER_KILL = 25  # so that no run ends before it was killed often enough
# How long a process waits for one that was killed before the rendezvous.
HURRY = ("--start_timeout_secs=60",)


class Killed(NamedTuple):
    """Outcome of one kill: what went wrong, and how long until all processes had ended."""

    failures: list[str]
    ending_secs: float


def shares(number: int, groups: int) -> list[int]:
    """How many kills each group has; the first ones take the remainder."""
    return [number // groups + (i < number % groups) for i in range(groups)]


def kills(folder: Path, chance: random.Random, *, number: int, processes: int) -> Outcome:
    """Kills a run of `processes` processes `number` times, then lets it finish."""
    steps = STEPS_PER_KILL * (number + 1)
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    finish(undisturbed, steps=steps, processes=processes)
    moments = [list(MOMENTS)[i % len(MOMENTS)] for i in range(number)]
    results = [_kill_once(killed, moment, steps, processes, chance) for moment in moments]
    finish(killed, steps=steps, processes=processes)
    failures = [text for result in results for text in result.failures]
    if bits(killed, steps) != bits(undisturbed, steps):
        failures.append("the last checkpoint has other bits")
    if losses(killed) != losses(undisturbed):
        failures.append("metrics.jsonl has other losses")
    slowest = max(result.ending_secs for result in results)
    return Outcome(number, failures, f"all processes had ended {slowest:.1f} s after a kill")


def _during_a_save(run: Started) -> None:
    run.wait_for("^step ")
    unfinished = lambda: any((run.workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*"))
    while run.alive() and not unfinished():
        time.sleep(0.001)


# What to wait for, and the most seconds until the kill follows.
MOMENTS: dict[str, tuple[Callable[[Started], object], float]] = {
    "start-up": (lambda run: None, 10),
    "restore": (lambda run: run.wait_for("parameters"), 1),
    "compilation": (lambda run: run.wait_for("compiling"), 2),
    "step": (lambda run: run.wait_for("^step "), 0.1),
    "save": (_during_a_save, 0.1),
    "evaluation": (lambda run: run.wait_for(r"^step [\d,]*[02468]0/"), 0.1),
}


def _kill_once(
    workdir: Path, moment: str, steps: int, processes: int, chance: random.Random
) -> Killed:
    """Starts the run and kills one of its processes."""
    before = max(saved(workdir), default=0)
    number = chance.choice([signal.SIGTERM, signal.SIGKILL])
    victim = chance.randrange(processes)
    wait, at_most_secs = MOMENTS[moment]
    with Started(workdir, steps=steps, processes=processes, more=HURRY) as run:
        wait(run)
        time.sleep(chance.uniform(0, at_most_secs))
        there = max(saved(workdir), default=0)
        run.send(victim, number)
        killed_at = time.monotonic()
        statuses = run.end(PATIENCE_SECS)
        ending_secs = time.monotonic() - killed_at
    after = max(saved(workdir), default=0)
    which = f"{moment}, {number.name} to process {victim}"
    failures = []
    print(f"  {which}: {statuses} after {ending_secs:.1f} s; saved {before}, {there}, {after}")
    if not as_expected(statuses, processes, victim, number):
        failures.append(f"{which}: ended with {statuses}: {run.lines[-3:]}")
    if after < there:
        failures.append(f"{which}: step {there} was saved and is lost")
    resumed = [line for line in run.lines if line.startswith("resumed")]
    if resumed and not resumed[0].endswith(f" step {before:,}"):
        failures.append(f"{which}: step {before} was saved, but: {resumed[0]}")
    for text in failures:
        print(f"  failed: {text}")
    return Killed(failures, ending_secs)


def as_expected(
    statuses: list[int | None], processes: int, victim: int, number: signal.Signals
) -> bool:
    """Whether each process saved, lost the victim or, being the victim, died of the signal.

    An extra None in `statuses` stands for a process left behind.
    """
    orderly = (PREEMPTED, PEER_LOST)
    return len(statuses) == processes and all(
        status in orderly or (i == victim and status == -number)
        for i, status in enumerate(statuses)
    )
