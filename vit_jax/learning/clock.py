"""The pace of a loop: when something is due, where it ends early, its speed, its steps ahead."""

import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from vit_jax.learning.feed import Feed

# Steps that the devices have yet to finish: one is computed, and one is ready. On CPUs none: a step
# that is ready already has its memory, gigabytes, and there is no device to keep busy.
IN_FLIGHT, IN_FLIGHT_ON_CPUS = 2, 0
PAUSE_SHARE = 0.005  # of a step's time, after it, on CPUs


@dataclasses.dataclass(frozen=True)
class Cadence:
    """Due after steps `every_steps`, `2 * every_steps`, ... and after `total_steps`.

    `every_steps` 0 or None: only after the last step.
    """

    every_steps: int | None
    total_steps: int

    def __call__(self, step: int) -> bool:
        """Returns whether it is due after `step` updates; step 0 (before any update) never is."""
        if not self.every_steps:
            return step == self.total_steps
        return step == self.total_steps or (step > 0 and step % self.every_steps == 0)


class Clock:
    """Speeds since the last tick, without pauses; and how long what is no step took.

    Args:
      step_flops: matrix FLOPs of one training step (parallel/products.py).
      peak_flops: FLOP/s of all devices together; None: unknown, then no MFU.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        step_flops: float,
        peak_flops: float | None,
        start_step: int,
        total_steps: int,
        feed: Feed,
    ):
        self._batch_size, self._step_flops, self._peak = batch_size, step_flops, peak_flops
        self._total_steps, self._feed = total_steps, feed
        self._step, self._waited = start_step, feed.wait_secs
        self._since = time.perf_counter()
        self._elsewhere: dict[str, float] = {}
        self.eta_secs = float("nan")

    def tick(self, step: int) -> dict[str, float]:
        """Images per second, input wait (fraction of the time, 0 to 1), MFU."""
        now, waited = time.perf_counter(), self._feed.wait_secs
        elapsed, steps = max(now - self._since, 1e-9), step - self._step
        self.eta_secs = (self._total_steps - step) * elapsed / max(steps, 1)
        speeds = {
            "speed/images_per_second": steps * self._batch_size / elapsed,
            "speed/input_wait": min(1.0, (waited - self._waited) / elapsed),
        }
        if self._peak:
            speeds["speed/mfu"] = steps * self._step_flops / elapsed / self._peak
        self._step, self._since, self._waited = step, now, waited
        return speeds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose duration the clock does not count."""
        started = time.perf_counter()
        yield
        self._since += time.perf_counter() - started

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Context whose duration the next row has as speed/<name>_secs."""
        started, key = time.perf_counter(), f"speed/{name}_secs"
        yield
        self._elsewhere[key] = self._elsewhere.get(key, 0.0) + time.perf_counter() - started

    def elsewhere(self) -> dict[str, float]:
        """The durations since the last row, in seconds."""
        durations, self._elsewhere = self._elsewhere, {}
        return durations


class InFlightSteps:
    """Keeps the loop few steps ahead of the devices.

    A loop that ran further ahead would hold a batch for each step, and a request to stop would wait
    for them all.
    """

    def __init__(self, platform: str) -> None:
        self._scalars: collections.deque[Any] = collections.deque()
        self._on_cpus = platform == "cpu"
        self._most = IN_FLIGHT_ON_CPUS if self._on_cpus else IN_FLIGHT

    def add(self, scalars: Any) -> None:
        """Adds a step that has begun, by its results; waits until few enough are unfinished."""
        self._scalars.append(scalars)
        if len(self._scalars) > self._most:
            began = time.perf_counter()
            jax.block_until_ready(self._scalars.popleft())
            if self._on_cpus:
                # XLA's thread frees the step's memory once it gets Python's lock, and the next step
                # would else take more.
                time.sleep(PAUSE_SHARE * (time.perf_counter() - began))

    def finish(self) -> None:
        """Waits for all steps that have begun."""
        jax.block_until_ready(list(self._scalars))  # a deque is a leaf to JAX
        self._scalars.clear()


class Stopped(NamedTuple):
    """The evaluation at which patience ran out."""

    step: int  # of the last evaluation that was waited for
    best: float | None  # the best value; None if no value was finite
    best_step: int  # its evaluation; then 0


def stopped(
    values: Iterable[tuple[int, float | None]], *, mode: str, patience: int, min_delta: float
) -> Stopped | None:
    """The end of a run with these (step, value) of its evaluations, in order; None: none yet.

    It is the first step at which the last `patience` evaluations were no better than the best
    before them by more than `min_delta`. A value that is None or not finite is no better.
    """
    sign = 1 if mode == "max" else -1
    best: float | None = None
    best_step = since = 0
    for step, value in values:
        number = math.nan if value is None else value
        better = best is None or sign * (number - best) > min_delta
        if math.isfinite(number) and better:
            best, best_step, since = number, step, 0
        else:
            since += 1
        if since == patience:
            return Stopped(step, best, best_step)
    return None


@dataclasses.dataclass
class EarlyStopping:
    """The decision to end a run: a function of all values of its metric so far.

    The values of a resumed run are those of its log, so it ends where it would have ended.
    """

    metric: str | None  # None: it never ends early
    mode: str
    patience: int
    min_delta: float
    _values: dict[int, float | None] = dataclasses.field(default_factory=dict)

    def add(self, step: int, row: Mapping[str, float | None]) -> None:
        """Adds what was logged for `step`."""
        if self.metric is not None and self.metric in row:
            self._values[step] = row[self.metric]

    @property
    def stopped(self) -> Stopped | None:
        """The end of the run by the values that were added; None: none yet."""
        return stopped(
            sorted(self._values.items()),
            mode=self.mode,
            patience=self.patience,
            min_delta=self.min_delta,
        )
