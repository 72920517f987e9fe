"""The updates of a run, one after the other: begun, and not waited for."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax

from vit_jax.training.objective import Batch
from vit_jax.training.state import StateLayout, TrainState
from vit_jax.training.step import Scalars, skip_update

IN_FLIGHT = 2  # steps that the devices have yet to finish: one is computed, and one is ready


class Updates:
    """What each step does to the state.

    Attributes:
      fixed: the update's arguments behind state and batch.

    Args:
      layout: that of the state.
      compiled: the update, compiled for `layout.in_steps`.
      left_out: whether the batch of a step is left out, by its number.
    """

    def __init__(
        self,
        layout: StateLayout,
        compiled: Callable[..., Any],
        left_out: Callable[[int], bool] = lambda step: False,
    ) -> None:
        self._layout, self._compiled, self._left_out = layout, compiled, left_out
        self.fixed = layout.read_fixed()  # a teacher's parameters, if there is one
        self._in_flight: collections.deque[Scalars] = collections.deque()

    def __call__(self, step: int, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        """Begins update number `step`, and returns what it will give.

        It waits until at most IN_FLIGHT steps are unfinished: a loop that ran further ahead would
        hold a batch for each of them, and a request to stop would wait for them all.
        """
        update = skip_update if self._left_out(step) else self._compiled
        state, scalars = update(self._layout.unstack_layers(state), batch, *self.fixed)
        self._in_flight.append(scalars)
        if len(self._in_flight) > IN_FLIGHT:
            jax.block_until_ready(self._in_flight.popleft())
        return state, scalars

    def finish(self) -> None:
        """Waits for all steps that have begun."""
        jax.block_until_ready(self._in_flight)
        self._in_flight.clear()
