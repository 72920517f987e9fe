"""What can be known of a sweep before its trainings: data, weights, models, the disk."""

import dataclasses
from collections.abc import Iterator

import jax
from etils import epath

from vit_jax import config as configs
from vit_jax.config import MeshConfig, RunConfig
from vit_jax.core.errors import ErrorCollector
from vit_jax.run.build import Run
from vit_jax.tools.lab.sweep.grid import Point, SweepGrid


def look(grid: SweepGrid, folder: epath.Path, errors: ErrorCollector) -> None:
    """Adds what is wrong with any value of any axis; the others are then at their first.

    Mesh and devices are left to the trainings, which may be elsewhere.
    """
    for config in _each_value(grid):
        Run.attempt(anywhere(config), folder, errors)


def leave_devices_alone() -> None:
    """Looks at shapes on the CPU: a GPU's memory, or a TPU, would be missing to the trainings."""
    jax.config.update("jax_platforms", "cpu")


def anywhere(config: RunConfig) -> RunConfig:
    """The config on whatever devices there are: where it is checked there may be others."""
    return dataclasses.replace(config, mesh=MeshConfig())


def configs_of(grid: SweepGrid) -> list[RunConfig]:
    """The configs of all points of a grid."""
    points = [Point(0, values, grid.common) for values in grid.points()]
    return [configs.load(point.config, point.overrides) for point in points]


def _each_value(grid: SweepGrid) -> Iterator[RunConfig]:
    """Configs with every value of every list in one of them, the others at their first."""
    first = grid.points()[0]
    points = [first, *(first | {f: v} for f, values in grid.axes.items() for v in values[1:])]
    for values in points:
        point = Point(0, values, grid.common)
        yield configs.load(point.config, point.overrides)
