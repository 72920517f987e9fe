"""The pace of a loop: when something is due, its speed, its steps ahead."""

import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

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


@dataclasses.dataclass(kw_only=True)
class Clock:
    """Speeds since the last tick, without pauses; and how long what is no step took."""

    batch_size: int
    step_flops: float  # matrix FLOPs of one training step (parallel/products.py)
    peak_flops: float | None  # FLOP/s of all devices together; None: unknown, then no MFU
    start_step: int
    total_steps: int
    feed: Feed
    eta_secs: float = math.nan

    def __post_init__(self) -> None:
        self._step, self._waited = self.start_step, self.feed.wait_secs
        self._since = time.perf_counter()
        self._elsewhere: dict[str, float] = {}

    def tick(self, step: int) -> dict[str, float]:
        """Images per second, input wait (fraction of the time, 0 to 1), MFU."""
        now, waited = time.perf_counter(), self.feed.wait_secs
        elapsed, steps = max(now - self._since, 1e-9), step - self._step
        self.eta_secs = (self.total_steps - step) * elapsed / max(steps, 1)
        speeds = {
            "speed/images_per_second": steps * self.batch_size / elapsed,
            "speed/input_wait": min(1.0, (waited - self._waited) / elapsed),
        }
        if self.peak_flops:
            speeds["speed/mfu"] = steps * self.step_flops / elapsed / self.peak_flops
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
