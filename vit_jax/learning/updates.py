"""Between the calls of a compiled update: how many are under way, and what replaces one."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.learning.losses import Batch
from vit_jax.learning.state import TrainState
from vit_jax.learning.step import Scalars, first_bad

# Steps that the devices have yet to finish: one is computed, and one is ready. On CPUs none: a step
# that is ready already has its memory, gigabytes, and there is no device to keep busy.
IN_FLIGHT, IN_FLIGHT_ON_CPUS = 2, 0
PAUSE_SHARE = 0.005  # of a step's time, after it, on CPUs


class InFlightSteps:
    """Keeps the loop few steps ahead of the devices.

    A loop that ran further ahead would hold a batch for each step, and a request to stop would wait
    for them all.
    """

    def __init__(self, platform: str) -> None:
        self._scalars: collections.deque[Scalars] = collections.deque()
        self._on_cpus = platform == "cpu"
        self._most = IN_FLIGHT_ON_CPUS if self._on_cpus else IN_FLIGHT

    def add(self, scalars: Scalars) -> None:
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


def skip_update(
    state: TrainState, batch: Batch, *teacher_params: Any
) -> tuple[TrainState, Scalars]:
    """Replaces an update: the step is counted, also by optax's schedules; its batch is ignored.

    Schedules and random numbers of later steps are as if the step had been trained on.
    """
    del batch, teacher_params
    # A schedule's state is a count alone; the counts of moments, which stay, are beside them.
    opt_state = _counted(state.opt_state, "count", lambda fields: fields == ("count",))
    opt_state = _counted(opt_state, "step_count", lambda fields: "step_count" in fields)
    state = state._replace(step=_next(state.step), opt_state=opt_state)
    # Copies, since the state's own arrays are donated to the next update.
    return state, jax.tree.map(jnp.copy, first_bad(state))


def _counted(opt_state: Any, name: str, has_count: Callable[[tuple[str, ...]], bool]) -> Any:
    """The state with one more step in the counts of this name, of tuples with such fields."""
    is_counter = lambda x: has_count(getattr(x, "_fields", ()))
    count = lambda x: x._replace(**{name: _next(getattr(x, name))}) if is_counter(x) else x
    return jax.tree.map(count, opt_state, is_leaf=is_counter)


_next = jax.jit(lambda count: count + 1)
