"""The calls of a compiled update, one after the other: begun, and not waited for."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout, TrainState
from vit_jax.learning.step import Scalars, first_bad

# Steps that the devices have yet to finish: one is computed, and one is ready. On CPUs none: a step
# that is ready already has its memory, gigabytes, and there is no device to keep busy.
IN_FLIGHT, IN_FLIGHT_ON_CPUS = 2, 0
PAUSE_SHARE = 0.005  # of a step's time, after it, on CPUs


class Updates:
    """The updates of a run: each call begins one."""

    def __init__(
        self,
        layout: StateLayout,
        compiled: Callable[..., Any] | None,
        teacher_params: tuple[Any, ...],
        is_skipped: Callable[[int], bool],
    ) -> None:
        self._layout, self._compiled, self.teacher_params = layout, compiled, teacher_params
        self._is_skipped = is_skipped
        self._in_flight: collections.deque[Scalars] = collections.deque()
        self._on_cpus = layout.mesh.devices.flat[0].platform == "cpu"
        self._most_in_flight = IN_FLIGHT_ON_CPUS if self._on_cpus else IN_FLIGHT

    def __call__(self, step: int, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        """Begins update number `step`; returns arrays that the devices still compute.

        It waits until few enough steps are unfinished: a loop that ran further ahead would hold a
        batch for each of them, and a request to stop would wait for them all.
        """
        update = skip_update if self._is_skipped(step) else self._compiled
        assert update is not None
        state, scalars = update(self._layout.unstack_layers(state), batch, *self.teacher_params)
        self._in_flight.append(scalars)
        if len(self._in_flight) > self._most_in_flight:
            began = time.perf_counter()
            jax.block_until_ready(self._in_flight.popleft())
            if self._on_cpus:
                # XLA's thread frees the step's memory once it gets Python's lock, and the next step
                # would else take more.
                time.sleep(PAUSE_SHARE * (time.perf_counter() - began))
        return state, scalars

    def finish(self) -> None:
        """Waits for all steps that have begun."""
        jax.block_until_ready(list(self._in_flight))  # a deque is a leaf to JAX
        self._in_flight.clear()


def skip_update(
    state: TrainState, batch: Batch, *teacher_params: Any
) -> tuple[TrainState, Scalars]:
    """Replaces an update: the step is counted, also by optax's schedules; its batch is ignored.

    Schedules and random numbers of later steps are as if the step had been trained on.
    """
    del batch, teacher_params
    opt_state = jax.tree.map(
        lambda x: x._replace(count=_next(x.count)) if _is_schedule(x) else x,
        state.opt_state,
        is_leaf=_is_schedule,
    )
    state = state._replace(step=_next(state.step), opt_state=opt_state)
    # Copies, since the state's own arrays are donated to the next update.
    return state, _copied(first_bad(state))


def _is_schedule(x: Any) -> bool:
    """Whether a state is a count alone; the counts of moments, which stay, are beside them."""
    return getattr(x, "_fields", None) == ("count",)


_next = jax.jit(lambda count: count + 1)
_copied = jax.jit(lambda scalars: jax.tree.map(jnp.copy, scalars))
