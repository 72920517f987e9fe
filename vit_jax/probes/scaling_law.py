"""Curves of loss against examples or compute, fitted and extrapolated: arXiv 2209.06640, section 3.

With x the examples or the compute and e the loss or error rate, the forms are those of FORMULAS.
All are fitted to the logarithms of both sides, by least squares. Given irreducible, shift and
chance these are linear in the rest, so a search over one or two numbers finds the optimum of the
whole. M4 is fitted as its authors' code does it; `_fit_m4` says how, and why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from vit_jax.core.errors import UserError, nearest

FORMULAS = {
    "M1": "e = scale · x^-exponent",
    "M2": "e = irreducible + scale · x^-exponent",
    "M3": "e = scale · (1/x + shift)^exponent",
    "M4": "(e - irreducible) / (chance - e)^alpha = scale · x^-exponent",
    "saturating": "e = irreducible + scale · (x + shift)^-exponent",  # arXiv 2106.04560, equation 1
}
# The numbers that each form has to fit.
PARAMETERS = {"M1": 2, "M2": 3, "M3": 3, "M4": 5, "saturating": 4}
MARGIN = 1e-3  # of irreducible below, and chance above, every loss: the authors' code
LEVEL = 0.9  # of intervals
_ZOOMS, _ITERATIONS = 4, 6  # of intervals: grids, and Gauss-Newton steps on each
_COARSE, _FINE, _LEVELS = 64, 17, 13  # points of the first grid and of each below; how many
_ROOM = 3  # on each side of the best, in the grid's steps
_HALVINGS = 40
_M4_LEVELS, _M4_HALVINGS = 6, 24  # of its own search


class ScalingLaw(NamedTuple):
    """A fitted curve.

    Attributes:
      form: one of PARAMETERS.
      log_scale: natural logarithm of the scale.
      exponent: at least 0.
      irreducible: the loss at infinite x that M2, M4 and saturating have.
      chance: M4's loss without any data.
      alpha: M4's, at least 0.
      shift: of M3 and saturating, at least 0.
      residuals: [n] log of the left side over the right side, in the order of x.
    """

    form: str
    log_scale: float
    exponent: float
    irreducible: float = 0.0
    chance: float = np.inf
    alpha: float = 0.0
    shift: float = 0.0
    residuals: np.ndarray = np.zeros(0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Losses at x > 0, of any shape."""
        return self._loss(self._log_right_side(np.asarray(x, np.float64)))

    @property
    def limit(self) -> float:
        """The loss at infinite x."""
        if self.form == "M3" and self.shift > 0:
            return float(np.exp(self.log_scale + self.exponent * np.log(self.shift)))
        return self.irreducible

    def _log_right_side(self, x: np.ndarray) -> np.ndarray:
        return self.log_scale - self.exponent * _log_size(self.form, x, self.shift)

    def _loss(self, log_right: np.ndarray) -> np.ndarray:
        """The loss at which the left side has this logarithm."""
        if self.alpha == 0:
            return self.irreducible + np.exp(log_right)
        return _between(log_right, self.irreducible, self.chance, self.alpha)


def _log_size(form: str, x: np.ndarray, shift: Any) -> np.ndarray:
    """The logarithm of the shifted size, which the exponent multiplies."""
    return -np.log(1 / x + shift) if form == "M3" else np.log(x + shift)


def _between(log_right: np.ndarray, irreducible: Any, chance: Any, alpha: Any) -> np.ndarray:
    """M4's losses: the left side grows from 0 at irreducible to infinity at chance."""
    low, high = np.zeros_like(log_right), np.ones_like(log_right)  # of the way between them
    room = chance - irreducible
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        left = np.log(room * middle) - alpha * np.log(room * (1 - middle))
        low, high = (
            np.where(left < log_right, middle, low),
            np.where(left < log_right, high, middle),
        )
    return irreducible + room * (low + high) / 2


class Interval(NamedTuple):
    """A law's losses with their interval, [N] each."""

    loss: np.ndarray
    low: np.ndarray
    high: np.ndarray


def fit(x: np.ndarray, loss: np.ndarray, form: str = "M4", *, chance: float = 1.0) -> ScalingLaw:
    """The law of a form through the points x [n], loss [n], in any order.

    chance: M4's loss without any data, to start from: 1 for error rates.

    UserError: the form is unknown; an x or a loss is not finite or not above 0; there are fewer
    different x than parameters; the losses rise with x.
    """
    x, loss = np.asarray(x, np.float64), np.asarray(loss, np.float64)
    check(x, loss, form)
    order = np.argsort(x, kind="stable")
    return _fit(x[order], loss[order], form, chance)


def check(x: np.ndarray, loss: np.ndarray, form: str) -> None:
    """Raises UserError as `fit` raises it."""
    if form not in PARAMETERS:
        raise UserError(f"{form!r} is not a form of a scaling law. {nearest(form, PARAMETERS)}")
    if x.shape != loss.shape or x.ndim != 1:
        raise UserError(f"A curve needs as many losses as x: {x.shape} and {loss.shape}.")
    for name, values in (("x", x), ("loss", loss)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            raise UserError(
                f"{name}={values[bad[0]]:g} at point {bad[0] + 1} of {len(x)}: a scaling law is "
                f"fitted to logarithms, so every {name} has to be a number above 0. Leave that "
                "point out."
            )
    different = len(np.unique(x))
    if different < PARAMETERS[form]:
        possible = [name for name, needed in PARAMETERS.items() if needed <= different]
        hint = f"take {' or '.join(possible)}, or " if possible else ""
        raise UserError(
            f"{form} has {PARAMETERS[form]} parameters, and the curve {different} different x: "
            f"{hint}give it more points."
        )
    if np.polyfit(np.log(x) - np.log(x).mean(), np.log(loss), 1)[0] >= 0:
        raise UserError(
            f"The losses do not fall, from {loss[np.argmin(x)]:g} at x={x.min():g} to "
            f"{loss[np.argmax(x)]:g} at x={x.max():g}, as a scaling law does. Give losses or error "
            "rates, not accuracies, of trainings that do not overfit."
        )


def held_out_error(
    law: Callable[[np.ndarray], np.ndarray], x: np.ndarray, loss: np.ndarray
) -> float:
    """Root mean square of log(law(x) / loss) over points beyond the fit, the paper's error."""
    return float(np.sqrt(np.mean((np.log(law(x)) - np.log(loss)) ** 2)))


def interval(
    law: ScalingLaw,
    x: np.ndarray,
    loss: np.ndarray,
    at: np.ndarray,
    *,
    chance: float = 1.0,
) -> Interval:
    """The law's losses at `at` [N] > 0, with an interval of the fit's uncertainty there.

    x, loss: the points of the fit, chance: its own. The interval of the profile likelihood, for
    noise of the losses' logarithms: the losses at `at` of all curves of the form whose sum of
    squares is at most (1 + t^2 / (n - parameters)) times the least, with Student's t of n -
    parameters degrees of freedom. For M1 this is the exact interval of a line through logarithms.
    The law's own loss is always inside, although its estimator, of another sum, may be biased.

    It is about the curve, not about another noisy measurement, and says nothing of the form: where
    that is wrong, the curve beyond these points may be far outside.

    UserError: there are no more points than parameters, so nothing says how large the noise is.
    """
    n, parameters = len(x), PARAMETERS[law.form]
    if n <= parameters:
        raise UserError(
            f"{law.form} goes through {n} points with {parameters} parameters: an interval needs "
            "at least one point more."
        )
    x, loss, at = (np.asarray(values, np.float64) for values in (x, loss, at))
    there, target = law(at), np.log(loss)
    spread = np.sqrt(((target - np.log(law(x))) ** 2).sum() / (n - parameters))
    factor = 1 + scipy.special.stdtrit(n - parameters, (1 + LEVEL) / 2) ** 2 / (n - parameters)
    axes = _shapes(law.form, x, loss, chance, float(spread))
    low, high, least = there, there, np.inf
    for _ in range(_ZOOMS):
        curves = _Curves(law.form, *(g.reshape(-1, 1) for g in np.meshgrid(*axes, indexing="ij")))
        with np.errstate(all="ignore"):  # some curves of the grid are impossible
            squares, ends = curves.closest(x, target, at, factor)
        if squares.min() < least:  # wider limits before were of a worse fit
            low, high, least = there, there, float(squares.min())
        low, high = np.fmin(low, ends[0]), np.fmax(high, ends[1])
        axes = _zoomed(axes, squares <= factor * least)
    return Interval(there, low, high)


class _Curves(NamedTuple):
    """Curves of one form, [G, 1] each, that leave the scale and the exponent to be fitted."""

    form: str
    irreducible: np.ndarray
    shift: np.ndarray
    chance: np.ndarray  # inf: of all forms but M4
    alpha: np.ndarray

    def closest(
        self, x: np.ndarray, target: np.ndarray, at: np.ndarray, factor: float
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Least squares of target = log(loss) [n] by Gauss-Newton, of each curve [G]; and the ends.

        ends: the least and the largest loss [N] at `at` of scales and exponents whose squares are
        at most `factor` times the least of all curves.
        """
        base, loss = _log_size(self.form, x, self.shift), np.exp(target)
        # The line through the left sides, where points that no curve reaches are moved inside.
        inside = np.clip(loss, self.irreducible + 0.01 * loss, self.chance - MARGIN)
        left = np.log(inside - self.irreducible) - self._saturation(inside)
        weight = self._slope(inside)
        constant, exponent, _ = _line(weight * left, weight, base)
        exponent = np.maximum(exponent, 0)
        best, squares = (constant, exponent), np.full(len(self.irreducible), np.inf)
        for _ in range(_ITERATIONS):
            fitted = self._losses(constant[:, None] - exponent[:, None] * base)
            noise = target - np.log(fitted)
            new = np.nan_to_num((noise**2).sum(1), nan=np.inf)
            best = tuple(
                np.where(new < squares, now, before)
                for now, before in zip((constant, exponent), best, strict=True)
            )
            squares = np.minimum(squares, new)
            more, steeper, _ = _line(noise, self._slope(fitted), base)
            constant = constant + np.nan_to_num(more)
            exponent = np.maximum(exponent + np.nan_to_num(steeper), 0)
        constant, exponent = (values[:, None] for values in best)
        slope = self._slope(self._losses(constant - exponent * base))
        *_, (ww, wb, bb) = _line(slope, slope, base)
        limit, places = factor * squares.min(), _log_size(self.form, at, self.shift)
        variance = (bb + places * (2 * wb + places * ww)) / (ww * bb - wb**2)
        room = np.sqrt(np.maximum(limit - squares, 0)[:, None] * np.maximum(variance, 0))
        good, line = squares <= limit, constant - exponent * places
        chosen = _Curves(self.form, *(values[good] for values in self[1:]))
        low, high = (chosen._losses((line + sign * room)[good]) for sign in (-1, 1))
        return squares, (np.nanmin(low, 0), np.nanmax(high, 0))

    def _saturation(self, loss: np.ndarray) -> np.ndarray:
        return self.alpha * np.log(self.chance - loss) if self.form == "M4" else np.zeros(1)

    def _slope(self, loss: np.ndarray) -> np.ndarray:
        """Returns the derivative of log(loss) by the logarithm of the right side."""
        return 1 / (loss / (loss - self.irreducible) + self.alpha * loss / (self.chance - loss))

    def _losses(self, log_right: np.ndarray) -> np.ndarray:
        if self.form != "M4":
            return self.irreducible + np.exp(log_right)
        return _between(log_right, self.irreducible, self.chance, self.alpha)


def _shapes(
    form: str, x: np.ndarray, loss: np.ndarray, chance: float, spread: float
) -> list[np.ndarray]:
    """The axes of a first grid: irreducible, shift, chance, alpha.

    Noise may put a loss below the irreducible one, or above chance.
    """
    none, least, most = np.zeros(1), loss.min() * (1 + spread), loss.max() * (1 + spread)
    irreducible, shift, top, alpha = none, none, np.full(1, np.inf), none
    if form in ("M2", "saturating", "M4"):
        count = {"M2": 80, "saturating": 40, "M4": 12}[form]
        below = least - np.geomspace(least, MARGIN * least, count)
        irreducible = np.unique(np.append(below, np.linspace(0, least, count)))
    if form == "M3":
        shift = np.append(0, np.geomspace(1e-3 / x.max(), 1e3 / x.min(), _COARSE))
    if form == "saturating":
        shift = np.append(0, np.geomspace(1e-3 * x.min(), 1e3 * x.max(), _COARSE // 2))
    if form == "M4":
        top = most + np.geomspace(MARGIN, max(chance - most, 0.02), 6)
        alpha = np.append(0, np.geomspace(0.05, 5, 8))
    return [irreducible, shift, top, alpha]


def _zoomed(axes: list[np.ndarray], good: np.ndarray) -> list[np.ndarray]:
    """The axes over the good points [G] of their grid, and one step more on each side."""
    places = np.unravel_index(np.flatnonzero(good), [len(axis) for axis in axes])
    closer = []
    for axis, at in zip(axes, places, strict=True):
        first, last = max(int(np.min(at)) - 1, 0), min(int(np.max(at)) + 1, len(axis) - 1)
        closer.append(axis if len(axis) == 1 else np.linspace(axis[first], axis[last], len(axis)))
    return closer


def _line(
    target: np.ndarray, weight: np.ndarray, base: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """Least squares of target [G, n] by weight * (constant - exponent * base), and its sums."""
    ww, wb, bb = ((weight**2 * base**k).sum(1, keepdims=True) for k in (0, 1, 2))
    wt, bt = ((weight * base**k * target).sum(1, keepdims=True) for k in (0, 1))
    determinant = ww * bb - wb**2
    constant, exponent = (bb * wt - wb * bt) / determinant, (wb * wt - ww * bt) / determinant
    return constant[:, 0], exponent[:, 0], (ww, -wb, bb)


class _Regression(NamedTuple):
    """Least squares of targets by a constant and one or two regressors, [A, B] each."""

    squares: np.ndarray
    constant: np.ndarray
    first: np.ndarray
    second: np.ndarray


def _fit(x: np.ndarray, loss: np.ndarray, form: str, chance: float) -> ScalingLaw:
    """`fit` of points that are in the order of x, and not looked at."""
    if form == "M4":
        return _fit_m4(np.log(x), loss, chance)

    def regress(irreducible: np.ndarray, shift: np.ndarray) -> _Regression:
        return _regress(np.log(loss - irreducible[:, None]), -_log_size(form, x, shift[:, None]))

    irreducible = shift = np.zeros(1)
    if form in ("M2", "saturating"):
        irreducible = _below(loss)
    if form == "M3":
        shift = np.append(0, np.geomspace(1e-3 / x[-1], 1e3 / x[0], _COARSE))
    if form == "saturating":
        shift = np.append(0, np.geomspace(1e-3 * x[0], 1e3 * x[-1], _COARSE))
    irreducible, shift = _search(lambda *at: regress(*at).squares, irreducible, shift)
    found = regress(irreducible, shift)
    law = ScalingLaw(
        form,
        log_scale=float(found.constant[0, 0]),
        exponent=float(found.first[0, 0]),
        irreducible=float(irreducible[0]),
        shift=float(shift[0]),
    )
    return law._replace(residuals=np.log(loss - irreducible) - law._log_right_side(x))


def _fit_m4(log_x: np.ndarray, loss: np.ndarray, chance: float) -> ScalingLaw:
    """M4 as in the authors' code: the point at which these two steps, in turn, change nothing.

    1. log(loss - irreducible) is regressed on log x and log(first - loss), with coefficients of at
       least 0; `first` is the chance that the search starts from, and stays.
    2. irreducible and chance go down the squares' gradient, with the coefficients of 1.

    Since `first` stays this is not the optimum of the squares, which is the worse estimator: over
    the paper's 72 curves the held-out error of the global one, with chance = 1, is 1.8 x as large
    in the geometric mean, and that of the one nearest to where the code starts 1.4 x. The code
    starts at the largest irreducible, so the first such point from there is the one that counts.
    """
    first = max(chance, loss.max() + MARGIN)
    low, high = loss.max() + MARGIN, first + MARGIN
    base, saturation = -log_x[None], np.log(first - loss)[None]

    def solve(irreducible: np.ndarray) -> tuple[np.ndarray, np.ndarray, _Regression]:
        """Returns, of irreducible [A], minus its gradient in step 2, chance, and step 1."""
        excess = np.log(loss - irreducible[:, None])
        found = _regress(excess, base, saturation)
        line = excess - found.constant - found.first * base  # alpha log(chance - loss), and noise
        below, above = np.full((len(irreducible), 1), low), np.full((len(irreducible), 1), high)
        for _ in range(_M4_HALVINGS):
            middle = (below + above) / 2
            room = middle - loss
            rises = ((line - found.second * np.log(room)) / room).sum(1, keepdims=True) > 0
            below, above = np.where(rises, middle, below), np.where(rises, above, middle)
        noise = line - found.second * np.log(above - loss)
        return (noise / (loss - irreducible[:, None])).sum(1), above[:, 0], found

    irreducible = _below(loss)[::-1]  # the largest first
    for _ in range(_M4_LEVELS):
        up = np.flatnonzero(solve(irreducible)[0] >= 0)
        last = up[0] if len(up) else len(irreducible) - 1
        irreducible = np.linspace(irreducible[max(last - 1, 0)], irreducible[last], _FINE)
    _, found_chance, found = solve(irreducible[-1:])
    law = ScalingLaw(
        "M4",
        log_scale=float(found.constant[0, 0]),
        exponent=float(found.first[0, 0]),
        irreducible=float(irreducible[-1]),
        chance=float(found_chance[0]),
        alpha=float(found.second[0, 0]),
    )
    left = np.log(loss - law.irreducible) - law.alpha * np.log(law.chance - loss)
    return law._replace(residuals=left - law._log_right_side(np.exp(log_x)))


def _below(loss: np.ndarray) -> np.ndarray:
    """Values of irreducible to search first, from 0 to MARGIN below the losses, closer there."""
    least = loss.min()
    return least - np.geomspace(least, min(MARGIN, least), _COARSE)


def _search(
    squares: Callable[[np.ndarray, np.ndarray], np.ndarray], first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The values, [1] each, of the least of squares(first [A], second [B]) [A, B].

    From the ascending grids down, each time around the best. A valley that runs askew is walked
    along, since the room around the best is not that of the grid before.
    """
    grids = [first, second]
    ends = [(grid[0], grid[-1]) for grid in grids]
    for level in range(_LEVELS + 1):
        table = squares(grids[0], grids[1])
        places = divmod(int(np.argmin(table)), table.shape[1])
        if level == _LEVELS:
            break
        for which, at in enumerate(places):
            grid, (low, high) = grids[which], ends[which]
            if len(grid) > 1:
                below, above = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
                room = _ROOM * max(grid[at] - below, above - grid[at])
                grids[which] = np.linspace(
                    max(grid[at] - room, low), min(grid[at] + room, high), _FINE
                )
    return grids[0][places[0], None], grids[1][places[1], None]


def _regress(
    target: np.ndarray, first: np.ndarray, second: np.ndarray | None = None
) -> _Regression:
    """Fits target [A, n] by a constant, first [B, n] and second [B, n], with slopes >= 0."""
    t, u = target - target.mean(1, keepdims=True), first - first.mean(1, keepdims=True)
    tt, uu, tu = (t * t).sum(1)[:, None], (u * u).sum(1), t @ u.T
    slope = np.maximum(tu / uu, 0)
    squares, other = tt - slope * tu, np.zeros_like(slope)
    if second is not None:
        v = second - second.mean(1, keepdims=True)
        vv, tv, uv = (v * v).sum(1), t @ v.T, (u * v).sum(1)
        alone = np.maximum(tv / vv, 0)
        better = tt - alone * tv < squares
        slope, other = np.where(better, 0, slope), np.where(better, alone, other)
        squares = np.minimum(squares, tt - alone * tv)
        # The best of both slopes, where neither is below 0, is better than either alone.
        determinant = uu * vv - uv**2
        both = (tu * vv - tv * uv) / determinant, (tv * uu - tu * uv) / determinant
        inside = (both[0] >= 0) & (both[1] >= 0)
        slope, other = np.where(inside, both[0], slope), np.where(inside, both[1], other)
        squares = np.where(inside, tt - both[0] * tu - both[1] * tv, squares)
    constant = target.mean(1)[:, None] - slope * first.mean(1)
    constant = constant - (0 if second is None else other * second.mean(1))
    return _Regression(squares, constant, slope, other)
