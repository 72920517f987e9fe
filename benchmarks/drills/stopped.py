"""A process that stands still, as on a hung machine: do the others notice and end?"""

import random
import re
import signal
import time
from pathlib import Path

from benchmarks.drills.run import ORPHAN_SECS, PEER_LOST, PEER_TIMEOUT_SECS, Outcome, Started

# Beyond the timeout: the time to exit on a busy machine.
SLACK_SECS = 30


def stopped(folder: Path, chance: random.Random) -> Outcome:
    """Stops each of two processes in turn."""
    failures, slowest = [], 0.0
    for victim in (0, 1):
        other = 1 - victim
        with Started(folder / str(victim), steps=100_000, processes=2) as run:
            run.wait_for("^step ")
            time.sleep(chance.uniform(0, 1))
            run.send(victim, signal.SIGSTOP)
            stopped_at = time.monotonic()
            while run.running(other) and time.monotonic() < stopped_at + ORPHAN_SECS:
                time.sleep(0.1)
            secs = time.monotonic() - stopped_at
            run.send(victim, signal.SIGCONT)  # so that it can end as well
            statuses = run.end(ORPHAN_SECS)
        notices = " ".join(line for line in run.lines if "no sign of life" in line)
        print(f"  process {victim}: {statuses} after {secs:.1f} s: {notices}")
        slowest = max(slowest, secs)
        if statuses[other] != PEER_LOST or None in statuses:
            failures.append(f"process {victim} stopped: ended with {statuses}")
        if not re.search(f"process {victim}.* has given no sign of life", notices):
            failures.append(f"process {victim} stopped: not named")
        if secs > PEER_TIMEOUT_SECS + SLACK_SECS:
            failures.append(f"process {victim} stopped: the other ended after {secs:.0f} s")
    time_out = f"--peer_timeout_secs={PEER_TIMEOUT_SECS}"
    return Outcome(2, failures, f"the other ended after {slowest:.1f} s with {time_out}")
