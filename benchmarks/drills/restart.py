"""Stops half-way and resumes with half and with double the processes: is it the same run?"""

import random
import shutil
import signal
from pathlib import Path

from benchmarks.drills.run import ORPHAN_SECS, Outcome, Started, finish, losses

STEPS = 40
PROCESSES = 2
# A different number of devices sums float32 in a different order.
MAX_RELATIVE_DIFFERENCE = 1e-5


def restart(folder: Path, chance: random.Random) -> Outcome:
    """Compares the logged losses with those of an uninterrupted run."""
    undisturbed, stopped = folder / "undisturbed", folder / "stopped"
    finish(undisturbed, steps=STEPS, processes=PROCESSES)
    with Started(stopped, steps=STEPS, processes=PROCESSES) as run:
        run.wait_for(f"^step {STEPS // 2}/")
        run.send(chance.randrange(PROCESSES), signal.SIGTERM)
        run.end(ORPHAN_SECS)
    expected, failures, worst = losses(undisturbed), [], 0.0
    for processes in (PROCESSES // 2, PROCESSES * 2):
        workdir = folder / f"with_{processes}"
        shutil.copytree(stopped, workdir)
        finish(workdir, steps=STEPS, processes=processes)
        actual = losses(workdir)
        if actual.keys() != expected.keys():
            failures.append(f"with {processes} processes it logged the steps {list(actual)}")
            continue
        difference = max(abs(actual[step] / loss - 1) for step, loss in expected.items())
        print(f"  with {processes} processes: losses differ by {difference:.1e}")
        worst = max(worst, difference)
        if difference > MAX_RELATIVE_DIFFERENCE:
            failures.append(f"with {processes} processes losses differ by {difference:.1e}")
    return Outcome(2, failures, f"losses differ by {worst:.1e} at most, relatively")
