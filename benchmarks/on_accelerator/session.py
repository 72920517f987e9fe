"""One run of the command: its time, its sizes, and what to do when something fails."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.contenders import SHAPES, Shape
from benchmarks.on_accelerator.journal import FAILED, MEASURED, SKIPPED, Journal
from benchmarks.workers import WorkerEnded
from vit_jax.core import errors

LONGEST_WAIT_SECS = 420  # for an answer of a process, compilation included

# Images in a batch: L/16's is that of the bars; the others fill the device as well, and leave room
# for two contenders on 80 GB.
BATCHES = {"L/16": 64, "B/16": 256, "S/16": 512, "H/14": 32}
# What a toy has of a shape; the patches of H/14 divide no power of 2 that is as small.
TOY = {"depth": 1, "width": 16, "mlp_dim": 32, "num_heads": 2, "patch_px": 4, "image_px": 8}
TOY_BATCH = 4


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the command: `measure` writes its rows within `minutes`."""

    name: str
    minutes: float
    measure: Callable[["Session"], None]


class Session:
    """What the parts share.

    scratch: a folder for files that are not results. only: the entrants that take part; empty: all.
    again: measure even what has been measured.

    Attributes:
      part: the name of the part under way.
      dry: toy sizes, to see that everything works.
      environment: variables for all processes.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        minutes: float,
        scratch: Path,
        dry: bool,
        only: tuple[str, ...] = (),
        again: bool = False,
    ):
        self.journal, self.scratch, self.dry = journal, scratch, dry
        self.environment = {
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "xla"),
            "JAX_COMPILATION_CACHE_MAX_SIZE": str(8 * 2**30),  # with a limit it is locked
        }
        for name in self.environment.keys() & os.environ.keys():
            self.environment[name] = os.environ[name]
        self._only, self._again = only, again
        self.part = ""
        self._deadline = self._end = time.monotonic() + 60 * minutes

    def run(self, part: Part) -> None:
        """Measures a part in its share of the time; an error ends the part alone.

        What it took in runs before this one is no longer there, unless it is measured again.
        """
        self.part = part.name
        before = 0.0 if self._again else self.journal.took_secs(part.name)
        share = max(0.0, 60 * part.minutes - before)
        self._deadline = min(self._end, time.monotonic() + share)
        try:
            part.measure(self)
        except Exception as error:
            self.write("", "", FAILED, note=first_line(error))

    def left_secs(self) -> float:
        """Seconds that this part has left; at least 1."""
        return max(1.0, self._deadline - time.monotonic())

    def wait_secs(self) -> float:
        """Seconds to wait for an answer: what this whole run has left, and no more than enough."""
        return min(LONGEST_WAIT_SECS, max(1.0, self._end - time.monotonic()))

    def wanted(self, case: str, entrant: str, needs_secs: float) -> bool:
        """Whether to measure this now; if only time is missing, a row says so."""
        if self._only and entrant not in self._only:
            return False
        if self.journal.done(self.part, case, entrant) and not self._again:
            return False
        if not self.dry and needs_secs and self.left_secs() < needs_secs:
            note = f"it takes about {needs_secs:.0f} s, of which {self.left_secs():.0f} are left"
            self.write(case, entrant, SKIPPED, note=note)
            return False
        return True

    @contextlib.contextmanager
    def attempt(self, case: str, entrant: str) -> Iterator[None]:
        """A failure inside becomes a row; one for want of time, a row that is tried again."""
        try:
            yield
        except WorkerEnded as error:
            cut_off = error.late and self.wait_secs() <= 1
            self.write(case, entrant, SKIPPED if cut_off else FAILED, note=first_line(error))
        except Exception as error:
            self.write(case, entrant, FAILED, note=first_line(error))

    def write(self, case: str, entrant: str, status: str = MEASURED, **values: object) -> None:
        """Writes a row of this part."""
        self.journal.write(self.part, case, entrant, status, **values)

    def sizes(self, *names: str) -> tuple[str, ...]:
        """These sizes; in a dry run the first alone, since all toys are the same."""
        return names[:1] if self.dry else names

    def shape(self, name: str, **changes: int) -> Shape:
        """A published size with the batch of BATCHES, and `changes`; a toy in a dry run."""
        shape = dataclasses.replace(SHAPES[name], **({"batch": BATCHES[name]} | changes))
        if not self.dry:
            return shape
        image_px = TOY["image_px"] * (2 if "image_px" in changes else 1)
        return dataclasses.replace(
            shape, **(TOY | {"batch": TOY_BATCH, "classes": 10, "image_px": image_px})
        )


def first_line(error: Exception) -> str:
    """The kind and the first line of an error."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, WorkerEnded) else f"{type(error).__name__}: {line}"


def check_names(flag: str, names: list[str], known: Sequence[str]) -> None:
    """Raises UserError for an unknown name."""
    for name in names:
        if name not in known:
            raise errors.UserError(f"{flag}: there is no {name!r}. {errors.nearest(name, known)}")
