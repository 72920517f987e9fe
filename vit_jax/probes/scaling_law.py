"""Curves of loss against examples or compute, fitted and extrapolated: arXiv 2209.06640, section 3.

With x the examples or the compute and e the loss or error rate, the forms are those of FORMULAS.
All are fitted by least squares of log(e), the maximum likelihood for noise in proportion to the
loss. The paper's estimators take the logarithm of the left side, of M2 log(e - irreducible): the
same noise counts the less, the lower irreducible is. Their sum is the least at irreducible = 0 for
most noisy curves that come near their floor, whatever that is.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy  # which imports its parts when they are used

from vit_jax.core.errors import UserError

FORMULAS = {
    "M1": "e = scale · x^-exponent",
    "M2": "e = irreducible + scale · x^-exponent",
    "M3": "e = scale · (1/x + shift)^exponent",
    "M4": "(e - irreducible) / (chance - e)^alpha = scale · x^-exponent",
    "saturating": "e = irreducible + scale · (x + shift)^-exponent",  # arXiv 2106.04560, equation 1
}
# The numbers that each form has to fit besides scale and exponent.
_SHAPES = {
    "M1": (),
    "M2": ("irreducible",),
    "M3": ("shift",),
    "M4": ("irreducible", "alpha"),
    "saturating": ("irreducible", "shift"),
}
PARAMETERS = {form: 2 + len(shape) for form, shape in _SHAPES.items()}
LEVEL = 0.9  # of intervals
LEAST_NOISE = 1e-7  # of intervals, where rounding is all that there is
_NEWTON_STEPS = 50  # at most; about 5 are taken
_STEP = 1e-5  # of differences in place of derivatives, in an interval's widths


class ScalingLaw(NamedTuple):
    """A fitted curve."""

    form: str  # one of PARAMETERS
    log_scale: float  # natural logarithm of the scale
    exponent: float  # at least 0
    irreducible: float = 0.0  # the loss at infinite x that M2, M4 and saturating have
    chance: float = np.inf  # M4's loss without any data
    alpha: float = 0.0  # M4's, at least 0
    shift: float = 0.0  # of M3 and saturating, at least 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Losses at x > 0, of any shape."""
        log_right = self.log_scale - self.exponent * self.log_size(np.asarray(x, np.float64))
        if self.alpha == 0:
            return self.irreducible + np.exp(log_right)
        # With e = irreducible + room * expit(u) the left side's slope in u goes from 1 to alpha, so
        # that Newton's steps from its asymptotes, the lines u and alpha * u, never pass the root.
        room = self.chance - self.irreducible
        target = log_right + (self.alpha - 1) * np.log(room)
        u = np.where(target < 0, target, target / max(self.alpha, 1e-6))
        for _ in range(_NEWTON_STEPS):
            left = self.alpha * np.logaddexp(0, u) - np.logaddexp(0, -u)
            step = (target - left) / (1 + (self.alpha - 1) * scipy.special.expit(u))
            u = u + step
            if np.abs(step).max(initial=0) < 1e-12:
                break
        return self.irreducible + room * scipy.special.expit(u)

    def log_size(self, x: np.ndarray) -> np.ndarray:
        """The logarithm of the shifted x, which the exponent multiplies."""
        return -np.log(1 / x + self.shift) if self.form == "M3" else np.log(x + self.shift)

    @property
    def limit(self) -> float:
        """The loss at infinite x."""
        if self.form == "M3" and self.shift > 0:
            return float(np.exp(self.log_scale + self.exponent * np.log(self.shift)))
        return self.irreducible


class Interval(NamedTuple):
    """A law's losses with their interval, [N] each."""

    loss: np.ndarray
    low: np.ndarray
    high: np.ndarray


def fit(x: np.ndarray, loss: np.ndarray, form: str = "M4", *, chance: float = 1.0) -> ScalingLaw:
    """The law of a form through the points x [n], loss [n], in any order.

    chance: M4's loss without any data: 1 for error rates.

    UserError: an x or a loss is not finite or not above 0; there are fewer
    different x than parameters; the losses rise with x.
    """
    x, loss = np.asarray(x, np.float64), np.asarray(loss, np.float64)
    _check(x, loss, form)
    curves = _Curves(form, x, loss, chance)
    return curves.law(curves.best())


class _Curves:
    """The curves of a form, by coordinates [parameters] of size 1 in any units of x and loss.

    They are the logarithm of the loss above irreducible, without M4's denominator, in the middle of
    the points; the exponent; and of the shape irreducible in units of the least loss, alpha, and
    log(1 + shift) in units of the least shift that a curve of these points shows.
    """

    def __init__(self, form: str, x: np.ndarray, loss: np.ndarray, chance: float) -> None:
        self.form, self.x, self.loss = form, x, loss
        self.middle = np.exp(np.log(x).mean())
        self.chance = max(chance, 1.001 * loss.max()) if form == "M4" else np.inf
        self.least = float(loss.min())
        self.shift = float(1 / x.max() if form == "M3" else x.min())
        slope, level = np.polyfit(np.log(x / self.middle), np.log(loss), 1)
        most_shift = np.log(1e4 * x.max() / x.min())
        shapes = {  # bounds, and where to start
            "irreducible": (0, loss.max() / loss.min(), (0.2, 0.9)),
            "shift": (0, most_shift, (0.05, 0.35 * most_shift)),
            "alpha": (0, 10, (0.1, 1)),
        }
        exponent = (0, np.inf, (-slope, -3 * slope))
        axes = [(-np.inf, np.inf, (level,)), exponent, *(shapes[name] for name in _SHAPES[form])]
        self.low, self.high, self.starts = zip(*axes, strict=True)

    def law(self, coordinates: np.ndarray) -> ScalingLaw:
        level, exponent, *shape = map(float, coordinates)
        numbers = dict(zip(_SHAPES[self.form], shape, strict=True))
        if "irreducible" in numbers:
            numbers["irreducible"] *= self.least
        if "shift" in numbers:
            numbers["shift"] = self.shift * float(np.expm1(numbers["shift"]))
        law = ScalingLaw(self.form, 0.0, exponent, chance=self.chance, **numbers)
        return law._replace(log_scale=level + exponent * float(law.log_size(self.middle)))

    def residuals(self, coordinates: np.ndarray) -> np.ndarray:
        return np.log(self.law(coordinates)(self.x) / self.loss)

    @np.errstate(all="ignore")  # some of the curves that are tried are impossible
    def best(self) -> np.ndarray:
        """The coordinates of the least squares."""
        fits = (
            scipy.optimize.least_squares(
                self.residuals, start, bounds=(self.low, self.high), x_scale="jac",
                ftol=1e-12, xtol=1e-12, gtol=1e-12,
            )
            for start in itertools.product(*self.starts)
        )  # fmt: skip
        return min(fits, key=lambda found: found.cost).x


def _check(x: np.ndarray, loss: np.ndarray, form: str) -> None:
    assert x.ndim == 1 and x.shape == loss.shape
    for name, values in (("x", x), ("loss", loss)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            raise UserError(f"{name}={values[bad[0]]:g} at point {bad[0] + 1} is not above 0.")
    different = len(np.unique(x))
    if different < PARAMETERS[form]:
        possible = [name for name, needed in PARAMETERS.items() if needed <= different]
        hint = f"take {' or '.join(possible)}, or " if possible else ""
        raise UserError(
            f"{form} has {PARAMETERS[form]} parameters, the curve {different} different x: "
            f"{hint}give it more points."
        )
    if np.polyfit(np.log(x) - np.log(x).mean(), np.log(loss), 1)[0] >= 0:
        raise UserError("The losses do not fall with x: give losses, not accuracies.")


@np.errstate(all="ignore")
def interval(
    law: ScalingLaw, x: np.ndarray, loss: np.ndarray, at: np.ndarray, *, chance: float = 1.0
) -> Interval:
    """The law's losses at `at` [N] > 0, with an interval of the fit's uncertainty there.

    x, loss: the points of the fit, chance: its own. The interval of the profile likelihood, for
    noise of the losses' logarithms: the losses at `at` of all curves of the form whose sum of
    squares is at most (1 + t^2 / (n - parameters)) times the least, with Student's t of n -
    parameters degrees of freedom. For M1 this is the exact interval of a line through logarithms.

    It is about the curve, not about another noisy measurement, and says nothing of the form: where
    that is wrong, the curve beyond these points may be far outside.

    UserError: there are no more points than parameters, so nothing says how large the noise is.
    """
    n, parameters = len(x), PARAMETERS[law.form]
    if n <= parameters:
        raise UserError(f"{law.form} goes through {n} points: an interval needs at least one more.")
    x, loss = np.asarray(x, np.float64), np.asarray(loss, np.float64)
    curves = _Curves(law.form, x, loss, chance)
    best, low, high = curves.best(), np.array(curves.low), np.array(curves.high)
    squares = max(float((curves.residuals(best) ** 2).sum()), n * LEAST_NOISE**2)
    t = scipy.special.stdtrit(n - parameters, (1 + LEVEL) / 2)
    radius = np.sqrt(squares / (n - parameters)) * t
    # The curves wanted are about a ball in z, if no coordinate goes further than its size.
    jacobian = scipy.optimize.approx_fprime(best, curves.residuals)
    rows = np.concatenate([jacobian, radius * np.eye(parameters)])
    basis = radius * np.linalg.inv(np.linalg.qr(rows, mode="r"))

    def near(z: np.ndarray) -> ScalingLaw:
        return curves.law(np.clip(best + basis @ z, low, high))

    def room(z: np.ndarray) -> np.ndarray:
        """Logarithm of the most squares over those of z, and what is left to each bound."""
        ratio = (squares + radius**2) / (np.log(near(z)(curves.x) / curves.loss) ** 2).sum()
        to_bounds = np.concatenate([best + basis @ z - low, high - best - basis @ z])
        return np.append(np.log(ratio), to_bounds[np.isfinite(to_bounds)])

    ends, known = [], [np.zeros(parameters)] * 4  # the fit itself, then the ends of points before
    for point, sign in itertools.product(np.asarray(at, np.float64), (1, -1)):

        def objective(z: np.ndarray, point: Any = point, sign: int = sign) -> Any:
            return sign * np.log(near(z)(point))

        slope = scipy.optimize.approx_fprime(np.zeros(parameters), objective, _STEP)
        nearest_known = min(known, key=objective)
        for start in (-slope / np.linalg.norm(slope), nearest_known):
            end = scipy.optimize.minimize(
                objective, start, method="SLSQP", options={"ftol": 1e-9, "eps": _STEP},
                constraints={"type": "ineq", "fun": room},
            ).x  # fmt: skip
            if room(end).min() > -1e-3 and objective(end) < objective(nearest_known):
                known = [*known[-3:], end]
                break
        ends.append(near(min(known, key=objective))(point))
    loss_at, (first, second) = law(at), np.reshape(ends, (-1, 2)).T
    return Interval(loss_at, np.minimum(first, loss_at), np.maximum(second, loss_at))
