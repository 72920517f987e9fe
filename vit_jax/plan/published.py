"""Costs of the paper's own runs (arXiv 2010.11929, table 2), to compare plans with."""

from typing import NamedTuple

from vit_jax.plan.forecast import Forecast

_WITHIN = 0.05  # relative difference in images and exaFLOPs of a run that counts as the paper's


class PaperRun(NamedTuple):
    """A pre-training of the paper.

    Attributes:
      model: its name.
      images: millions of images seen.
      exaflops: exaFLOPs of matrix products (table 6).
      core_days: TPUv3 core-days (table 2).
    """

    model: str
    images: float
    exaflops: float
    core_days: float


# JFT has 303 M images, ImageNet-21k 14.2 M. Of ViT-L/16 on ImageNet-21k table 3 has 30 and 90
# epochs, and table 2 does not say which it lists. At 90 it would have run at 38 % of the chips'
# rate, between the other two (43 and 32 %); at 30 at 13 %. Table 6 does not list it; its exaFLOPs
# follow the same rule.
RUNS = (
    PaperRun("ViT-H/14", 14 * 303, 4262, 2500),
    PaperRun("ViT-L/16", 14 * 303, 1567, 680),
    PaperRun("ViT-L/16", 90 * 14.2, 472, 230),
)


class PaperComparison(NamedTuple):
    """The paper's run, and how a plan compares.

    Attributes:
      core_days: the paper's TPUv3 core-days.
      ratio: the plan's core-days to these; None: not a plan for TPUv3.
    """

    core_days: float
    ratio: float | None


def compare(forecast: Forecast) -> PaperComparison | None:
    """The run of the paper that a forecast repeats, and the ratio; None if it repeats none."""
    images = forecast.batch_size * forecast.steps / 1e6
    for run in RUNS:
        near = lambda a, b: abs(a / b - 1) <= _WITHIN
        same = near(images, run.images) and near(forecast.exaflops, run.exaflops)
        if forecast.model.name == run.model and same:
            ours = forecast.core_days if (forecast.topology or "").startswith("v3:") else None
            return PaperComparison(run.core_days, None if ours is None else ours / run.core_days)
    return None
