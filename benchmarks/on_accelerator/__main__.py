"""Everything that only an accelerator can tell, in one command, for a machine that is lent.

    python -m benchmarks.on_accelerator --minutes 25

In this order: the rate of matrix products; training steps of four sizes against timm, Hugging Face
and plain flax.linen; kill and resume to the same bits; small data sets trained from the device's
memory; inference; each attention; peak memory; the cost of deterministic flags; a profile. A row is
appended to runs/on_accelerator/on_accelerator.csv as soon as it is measured. The same command again
goes on where it was cut off: what has been measured of these sources on this device is left out. A
part that fails, or that time is too short for, gives a row that says so, and the rest goes on; the
next run tries it again. --take adds the rows to the results.

Needs no TensorFlow and no network; docs/benchmarks.md has the list of packages. --dry_run does the
same with toys, on a CPU too.
"""

import tempfile
from pathlib import Path

from absl import flags

from benchmarks import rows
from benchmarks.on_accelerator import contests, programs, published, small_data
from benchmarks.on_accelerator.journal import NAME, Journal, take
from benchmarks.on_accelerator.session import Part, Session, check_names
from benchmarks.workers import ROOT
from vit_jax.core import command, errors

_MINUTES = flags.DEFINE_float(
    "minutes", 25, "What all of it may take; the rest is left out.", lower_bound=0
)
_PARTS = flags.DEFINE_list("parts", [], "Only these; default: all.")
_AGAIN = flags.DEFINE_bool("again", False, "Measure what was measured before, too.")
_ENTRANTS = flags.DEFINE_list("entrants", [], "Only these, such as own,linen.")
_OUTPUT = flags.DEFINE_string("output", None, f"For rows and profiles; default: runs/{NAME}.")
_SCRATCH = flags.DEFINE_string(
    "scratch",
    str(Path(tempfile.gettempdir()) / "vit_jax_on_accelerator"),
    "For checkpoints, traces and compiled programs.",
)
_TAKE = flags.DEFINE_string("take", None, "Only add the rows of this --output to the results.")
_DRY = flags.DEFINE_bool("dry_run", False, "Toys, in seconds; rows go to --output alone.")

# The most telling first. The minutes add up to 25, without the last part.
PARTS = (
    Part("matrix", 0.5, programs.matrix),
    Part("training", 8, contests.training),
    Part("resume", 2, programs.resume),
    Part("small_data", 6.5, small_data.small_data),
    Part("inference", 1.5, contests.inference),
    Part("attention", 2, contests.attention),
    Part("memory", 2, programs.memory),
    Part("deterministic", 1.5, contests.deterministic),
    Part("profile", 1, programs.profile),
    Part("published", 40, published.published),
)


def main(_: list[str]) -> None:
    """Measures part by part."""
    if _TAKE.value:
        print(f"{take(Path(_TAKE.value))} rows are new.")
        return
    check_names("--entrants", _ENTRANTS.value, contests.NAMES)
    if _DRY.value and not _OUTPUT.value:
        raise errors.UserError("--dry_run measures nothing worth keeping: give an --output.")
    output = Path(_OUTPUT.value or ROOT / "runs" / NAME)
    session = Session(
        Journal(output, [] if _DRY.value else [rows.RESULTS], dry=_DRY.value),
        minutes=_MINUTES.value,
        scratch=Path(_SCRATCH.value),
        dry=_DRY.value,
        only=tuple(_ENTRANTS.value),
        again=_AGAIN.value,
    )
    for part in chosen(_PARTS.value):
        session.run(part)


def chosen(names: list[str]) -> list[Part]:
    """The parts of these names, in their order; of none: all. UserError for an unknown one."""
    check_names("--parts", names, [part.name for part in PARTS])
    return [part for part in PARTS if not names or part.name in names]


if __name__ == "__main__":
    command.run(main)
