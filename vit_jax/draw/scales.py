"""Axes: places of numbers, ticks and their labels."""

import math
from collections.abc import Sequence
from typing import NamedTuple

MARGIN = 0.05  # of the axis, above and below what is drawn
TINY = 1e-30  # least length of an axis


class Scale(NamedTuple):
    """An axis from `low` to `high`; with `log` equal factors are equally long."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int) -> list[float]:
        """Round numbers on the axis, about `about` of them."""
        if self.log:
            return self._powers(about)
        step = round_step((self.high - self.low) / about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        # 12 digits: 3 * 0.1 is 0.30000000000000004.
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]

    def _powers(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, round((last - first) / about))
        digits = (1, 2, 5) if math.log10(self.high / self.low) <= about / 2 else (1,)
        first -= first % every
        ticks = [float(f"{d}e{e}") for e in range(first, last + 1, every) for d in digits]
        return [tick for tick in ticks if self.low <= tick <= self.high]


class Axes(NamedTuple):
    """A horizontal and a vertical axis, and the edges of the area between them in a picture."""

    across: Scale
    up: Scale
    left: float
    right: float
    top: float
    bottom: float

    def x(self, value: float) -> float:
        """Distance from the left edge of the picture."""
        return self.left + (self.right - self.left) * self.across.place(value)

    def y(self, value: float) -> float:
        """Distance from the top edge of the picture."""
        return self.bottom - (self.bottom - self.top) * self.up.place(value)

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """The place of a point."""
        return self.x(point[0]), self.y(point[1])


def fit(values: Sequence[float], *, start: float | None, end: float | None, log: bool) -> Scale:
    """An axis for finite `values`, not empty; it reaches `start` and `end` where they are given."""
    if log:
        low, high = math.log(min(values)), math.log(max(values))
        margin = MARGIN * (high - low)
        return Scale(math.exp(low - margin), math.exp(high + margin), log=True)
    bounds = [*values, *(bound for bound in (start, end) if bound is not None)]
    low, high = min(bounds), max(bounds)
    if low == high == start:
        high = low + 1
    elif low == high:  # a line in the middle
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    margin = max(MARGIN * (high - low), TINY)
    return Scale(low if low == start else low - margin, high if high == end else high + margin)


def round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def labels(ticks: Sequence[float], *, percent: bool = False) -> list[str]:
    """Labels of the ticks: "0.5" and "1.0", "20k", "5e-4", "25%"."""
    sizes = [abs(tick) for tick in ticks if tick] or [1.0]
    if percent:
        return _decimals([100 * tick for tick in ticks], "%")
    is_log = max(sizes) / min(sizes) >= 10  # too many ticks for a linear axis
    if max(sizes) >= 1e9 or (min(sizes) if is_log else max(sizes)) < 1e-3:
        return [_power(tick) for tick in ticks]
    if is_log:
        return [f"{tick:,g}" for tick in ticks]
    if max(sizes) >= 1e6:
        return _decimals([tick / 1e6 for tick in ticks], "M")
    if max(sizes) >= 1e4:
        return _decimals([tick / 1e3 for tick in ticks], "k")
    return _decimals(ticks, "")


def _decimals(numbers: Sequence[float], unit: str) -> list[str]:
    """The numbers, all with as many decimals as the one that needs most."""
    exact = [f"{number:.10f}".rstrip("0").partition(".")[2] for number in numbers]
    decimals = max(map(len, exact), default=0)
    return [f"{number:,.{decimals}f}{unit}" if number else "0" for number in numbers]


def _power(number: float) -> str:
    """5e-4, where Python writes 0.0005 or 5e-04."""
    if not number:
        return "0"
    mantissa, _, exponent = f"{number:.9e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"
