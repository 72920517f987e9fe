"""Damages files of the newest checkpoint: is that detected and named, and the previous one used?

Some ranges of a database's files are no longer referenced; damage to them alone changes no array
and rightly goes unnoticed. So more than such a range is damaged.
"""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.drills.run import Outcome, bits, finish, saved

STEPS = 20
FLIPPED_EVERY = 1000  # bytes
PARTS = ("state", "description")  # within a checkpoint; see store/checkpoint_dir.py


def damage(folder: Path, chance: random.Random) -> Outcome:
    """Damages a finished run's last checkpoint in every way, restarting it each time."""
    undisturbed, failures = folder / "undisturbed", []
    finish(undisturbed, steps=STEPS, processes=1)
    before = undisturbed / "checkpoints" / str(saved(undisturbed)[-2])
    ways = [(name, part) for name in DAMAGES for part in PARTS]
    for name, part in ways:
        workdir = folder / f"{part}_{name}"
        shutil.copytree(undisturbed, workdir)
        DAMAGES[name](workdir / "checkpoints" / str(STEPS) / part, before / part, chance)
        output = finish(workdir, steps=STEPS, processes=1)
        notices = [line for line in output if "is damaged" in line]
        print(f"  {part} {name}: {' '.join(notices)}")
        wanted = f"checkpoint {STEPS} is damaged .* going on from step {before.name}"
        if not any(re.search(wanted, notice) for notice in notices):
            failures.append(f"{part} {name}: not noticed")
        if bits(workdir, STEPS) != bits(undisturbed, STEPS):
            failures.append(f"{part} {name}: the run ended with other bits")
    return Outcome(len(ways), failures, "each was found before anything was computed with it")


def _remove(part: Path, before: Path, chance: random.Random) -> None:
    _largest(part).unlink()


def _truncate(part: Path, before: Path, chance: random.Random) -> None:
    data = _largest(part).read_bytes()
    _largest(part).write_bytes(data[: chance.randrange(len(data) // 2)])


def _flip(part: Path, before: Path, chance: random.Random) -> None:
    data = bytearray(_largest(part).read_bytes())
    for i in range(chance.randrange(FLIPPED_EVERY), len(data), FLIPPED_EVERY):
        data[i] ^= 1 << chance.randrange(8)
    _largest(part).write_bytes(data)


def _exchange(part: Path, before: Path, chance: random.Random) -> None:
    """Swaps in files of another step; each is intact by itself."""
    shutil.rmtree(part)
    shutil.copytree(before, part)


# A part of the newest checkpoint, and the same part of the previous one.
DAMAGES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "removed": _remove,
    "truncated": _truncate,
    "flipped": _flip,
    "exchanged": _exchange,
}


def _largest(part: Path) -> Path:
    return max((f for f in part.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
