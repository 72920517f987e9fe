"""A closer look at single steps: pictures of the first batch, distributions of every so many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from vit_jax.config import RunConfig
from vit_jax.data.source import Source
from vit_jax.learning.clock import Clock
from vit_jax.learning.loggers import RunLog
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import TrainState
from vit_jax.run.parts.inputs import first_examples
from vit_jax.run.parts.updates import StepParts


class CloseUps:
    """Logs more of some steps than their scalars, while the clock is paused.

    finish_steps: waits for the steps that have begun, lest the clock take the devices' work for a
    pause.
    """

    def __init__(
        self,
        config: RunConfig,
        source: Source,
        parts: StepParts,
        teacher_params: tuple[Any, ...],
        log: RunLog,
        clock: Clock,
        finish_steps: Callable[[], None],
        *,
        title: str,
    ) -> None:
        self._config, self._source, self._parts, self._title = config, source, parts, title
        self._teacher_params, self._log, self._clock = teacher_params, log, clock
        self._finish_steps = finish_steps

    def add(self, step: int, state: TrainState, batch: Batch) -> TrainState:
        """Logs what is due of the step that comes; where layers were stacked for it, they stay."""
        durations, layout = self._parts.durations, self._parts.layout
        if durations.shows_batch(step):
            with self._clock.paused():
                self._log.draw_later(step, self._draw_batch(step, batch))
        if durations.histograms(step):
            self._finish_steps()
            with self._clock.paused():
                state = layout.stack_layers(state)
                made = self._distributions(state, batch, *self._teacher_params)
                self._log.write_distributions(step, jax.device_get(made))
        return state

    def _draw_batch(self, step: int, batch: Batch) -> Callable[[], dict[str, bytes]]:
        """Draws log.first_batch images of a batch, as they are computed now, on all processes."""
        c, parts = self._config, self._parts
        number, mesh = c.log.first_batch, parts.layout.mesh
        examples = first_examples(c, parts.objective, batch, step=step, number=number, mesh=mesh)

        def draw() -> dict[str, bytes]:
            from vit_jax.run.batch_sheet import draw

            how = parts.objective, parts.durations
            png = draw(c, self._source, *how, examples, title=self._title, step=step)
            return {"input/batch": png}

        return draw

    @functools.cached_property
    def _distributions(self) -> Callable[..., Any]:
        from vit_jax.learning.histograms import make_distributions

        return make_distributions(self._parts.layout, self._parts.objective, self._config.seed)
