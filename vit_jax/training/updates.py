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

    Args:
      layout: that of the state.
      compiled: the update, compiled for `layout.in_steps`.
      fixed: its arguments behind state and batch.
      is_skipped: whether the batch of a step is left out, by its number.
    """

    def __init__(
        self,
        layout: StateLayout,
        compiled: Callable[..., Any],
        fixed: tuple[Any, ...],
        is_skipped: Callable[[int], bool],
    ) -> None:
        self._layout, self._compiled, self._fixed = layout, compiled, fixed
        self._is_skipped = is_skipped
        self._in_flight: collections.deque[Scalars] = collections.deque()

    def __call__(self, step: int, state: TrainState, batch: Batch) -> tuple[TrainState, Scalars]:
        """Begins update number `step`, and returns what it will give.

        It waits until at most IN_FLIGHT steps are unfinished: a loop that ran further ahead would
        hold a batch for each of them, and a request to stop would wait for them all.
        """
        update = skip_update if self._is_skipped(step) else self._compiled
        state, scalars = update(self._layout.unstack_layers(state), batch, *self._fixed)
        self._in_flight.append(scalars)
        if len(self._in_flight) > IN_FLIGHT:
            jax.block_until_ready(self._in_flight.popleft())
        return state, scalars

    def finish(self) -> None:
        """Waits for all steps that have begun."""
        jax.block_until_ready(self._in_flight)
        self._in_flight.clear()
