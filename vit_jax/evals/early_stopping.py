"""The end of a run whose evaluations get no better: `early_stopping`."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple


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
