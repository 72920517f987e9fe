"""Kills, damages and stops training runs, and checks that they end as if undisturbed.

    python -m benchmarks.failure_drill --kills 50

kills      at random moments of start-up, restore, compilation, step, save and evaluation, by
           SIGTERM and SIGKILL, of a single process or of one of several; started again each time.
           The run must end with the bits of an undisturbed one, lose no saved step, and leave no
           process behind.
restart    with half and with double the processes: the losses of the undisturbed run.
damage     files of the newest checkpoint removed, truncated, flipped, swapped with another step's:
           detected and named; the previous one is used, and the result has the same bits.
stopped    one of two processes is SIGSTOPped: the other names it and exits with 76 in time.
hanging    an image becomes a pipe that nobody writes to: the run names file and host, and ends.

The runs train a tiny model in processes on this machine. Prints a table and appends its rows to
benchmarks/results/failure_drill.csv; exits with 1 on any failure.
"""

import functools
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from absl import flags

from benchmarks import rows
from benchmarks.drills.damage import damage
from benchmarks.drills.hanging import hanging
from benchmarks.drills.kills import kills, shares
from benchmarks.drills.restart import restart
from benchmarks.drills.run import Outcome
from benchmarks.drills.stopped import stopped
from vit_jax.core import command

Drill = Callable[[Path, random.Random], Outcome]

_KILLS = flags.DEFINE_integer(
    "kills", 50, "How often to kill, over all of --processes together.", lower_bound=1
)
_PROCESSES = flags.DEFINE_list("processes", ["1", "2"], "Of the runs that are killed.")
_SEED = flags.DEFINE_integer("seed", 0, "Of moments, signals, victims and damages.")
NAMES = ("kills", "restart", "damage", "stopped", "hanging")
_DRILLS = flags.DEFINE_list("drills", list(NAMES), "Which of them.")
_APPEND = flags.DEFINE_bool("append", True, "Whether to append the rows to the results.")
flags.register_validator(
    _DRILLS, lambda names: set(names) <= set(NAMES), f"give some of {','.join(NAMES)}"
)
flags.register_validator(
    _PROCESSES,
    lambda numbers: numbers and all(re.fullmatch("[1-9][0-9]*", number) for number in numbers),
    "give whole numbers from 1, such as 1,2",
)


def main(_: list[str]) -> None:
    """Runs the drills; prints and records the outcomes."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # keeps no runs
    failed, table = False, []
    for name, drill in _drills().items():
        print(f"{name}:", flush=True)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="failure_drill_") as folder:
            outcome = drill(Path(folder), random.Random(f"{_SEED.value} {name}"))
        row = {
            "seed": _SEED.value,
            "drill": name,
            "rounds": outcome.rounds,
            "outcome": "; ".join(outcome.failures) or "passed",
            "worst": outcome.worst,
            "minutes": round((time.monotonic() - started) / 60, 1),
        }
        table.append(row)
        failed = failed or bool(outcome.failures)
        rows.record("failure_drill", "vit_jax", "jax orbax-checkpoint", row, keep=_APPEND.value)
    print("\n| drill | rounds | outcome | worst |\n|---|---|---|---|")
    for row in table:
        print(f"| {row['drill']} | {row['rounds']} | {row['outcome']} | {row['worst']} |")
    sys.exit(1 if failed else 0)


def _drills() -> dict[str, Drill]:
    """The chosen drills, by name."""
    groups = [int(n) for n in _PROCESSES.value]
    every: dict[str, dict[str, Drill]] = {
        "kills": {
            f"kills, {n} process{'es' * (n > 1)}": functools.partial(
                kills, number=number, processes=n
            )
            for n, number in zip(groups, shares(_KILLS.value, len(groups)), strict=True)
            if number
        },
        "restart": {"restart": restart},
        "damage": {"damage": damage},
        "stopped": {"stopped": stopped},
        "hanging": {"hanging": hanging},
    }
    return {name: drill for which in _DRILLS.value for name, drill in every[which].items()}


if __name__ == "__main__":
    command.run(main)
