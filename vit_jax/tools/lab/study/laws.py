"""Scaling laws of a study: of each model over its examples, and of the frontier over compute."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.probes import scaling_law
from vit_jax.probes.scaling_law import Interval, ScalingLaw
from vit_jax.tools.lab.study import frontier
from vit_jax.tools.lab.study.points import Scored

FRONTIER = "all models"
BEYOND = 10.0  # times the largest x of a curve, as far as its law is drawn
_DRAWN = 41  # losses of a law


class Curve(NamedTuple):
    """Losses [n] over x [n], ascending.

    Attributes:
      name: FRONTIER, or a model.
      over: "exaflops" or "examples".
    """

    name: str
    over: str
    x: np.ndarray
    loss: np.ndarray


class FittedCurve(NamedTuple):
    """A curve and its law.

    Attributes:
      law: None if it has none, and `why`.
      x: where it is drawn [N], from the curve's first to BEYOND times its last.
      interval: the law at x; low and high are NaN if there is none, and `why`.
      why: "" if all went well.
    """

    curve: Curve
    law: ScalingLaw | None
    x: np.ndarray
    interval: Interval | None
    why: str = ""

    @property
    def extrapolated(self) -> np.ndarray:
        """[N] bool: which x are beyond the curve's points."""
        return self.x > self.curve.x[-1] * (1 + 1e-9)


def curves(scored: Sequence[Scored]) -> list[Curve]:
    """The frontier over exaFLOPs, and each model's best losses over the number of its examples."""
    if not scored:
        return []
    best = frontier.frontier([s.point.cost.exaflops for s in scored], [s.loss for s in scored])
    found = [Curve(FRONTIER, "exaflops", best.exaflops, best.loss)]
    for model in dict.fromkeys(each.point.model for each in scored):
        losses: dict[int, float] = {}
        for each in scored:
            if each.point.model == model:
                examples = each.point.cost.examples
                losses[examples] = min(each.loss, losses.get(examples, np.inf))
        x = sorted(losses)
        found.append(Curve(model, "examples", np.array(x, float), np.array([losses[k] for k in x])))
    return found


def fitted(curve: Curve, form: str, *, chance: float) -> FittedCurve:
    """The curve with its law and interval, or why it has none."""
    x = np.geomspace(curve.x[0], BEYOND * curve.x[-1], _DRAWN)
    try:
        law = scaling_law.fit(curve.x, curve.loss, form, chance=chance)
    except UserError as error:
        return FittedCurve(curve, None, x, None, str(error))
    try:
        interval = scaling_law.interval(law, curve.x, curve.loss, x, chance=chance)
    except UserError as error:
        nothing = np.full(len(x), np.nan)
        return FittedCurve(curve, law, x, Interval(law(x), nothing, nothing), str(error))
    return FittedCurve(curve, law, x, interval)
