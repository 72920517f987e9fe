"""Classes that are computed from other features of an example, by name.

Those of VTAB's tasks (arXiv 1910.04867, appendix A), with the thresholds of the benchmark's code:
https://github.com/google-research/task_adaptation/tree/master/task_adaptation/data
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

OUTSIDE = -1  # what has no class

# CLEVR, in the unit of the third of its pixel coordinates; KITTI, in metres before the camera. A
# value on a border belongs to the class below it.
_CLEVR_BORDERS = (8.0, 8.5, 9.0, 9.5, 10.0)
_CLEVR_FARTHEST = 100.0
_KITTI_BORDERS = (8.0, 20.0, 999.0)
_KITTI_NO_VEHICLE, _KITTI_NEAREST = 1000.0, -100.0
_KITTI_VEHICLES = 3  # the first types: car, van, truck
_CLEVR_FEWEST = 3  # objects of an image
_DSPRITES_CLASSES, _DSPRITES_PLACES, _DSPRITES_ANGLES = 16, 32, 40


class Derivation(NamedTuple):
    """A class from features.

    Attributes:
      features: their names, as TFDS stores them: "objects/size" holds the sizes of all objects.
      class_names: one a class, in order.
      derive: the class from the values of each, flat arrays; a number outside of the classes where
        there is none.
    """

    features: tuple[str, ...]
    class_names: tuple[str, ...]
    derive: Callable[..., int]


def _clevr_count(sizes: np.ndarray) -> int:
    return len(sizes) - _CLEVR_FEWEST


def _clevr_distance(coordinates: np.ndarray) -> int:
    """That of the closest object; three coordinates each."""
    nearest = coordinates.reshape(-1, 3)[:, 2].min(initial=np.inf)
    if not 0 < nearest <= _CLEVR_FARTHEST:
        return OUTSIDE
    return int(np.searchsorted(_CLEVR_BORDERS, nearest))


def _kitti_distance(types: np.ndarray, locations: np.ndarray) -> int:
    """That of the closest vehicle; three coordinates each."""
    depths = locations.reshape(-1, 3)[types < _KITTI_VEHICLES, 2]
    nearest = depths.min(initial=_KITTI_NO_VEHICLE)
    return int(np.searchsorted(_KITTI_BORDERS, nearest)) if nearest > _KITTI_NEAREST else OUTSIDE


def _grouped(values: int) -> Callable[[np.ndarray], int]:
    """Neighbouring ones of so many values, in 16 classes."""
    return lambda value: int(value[0]) * _DSPRITES_CLASSES // values


def _between(borders: tuple[float, ...]) -> tuple[str, ...]:
    """ "up to 8", "8 to 20", "above 20"."""
    first, last = f"up to {borders[0]:g}", f"above {borders[-1]:g}"
    return (first, *(f"{a:g} to {b:g}" for a, b in itertools.pairwise(borders)), last)


def _numbered(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix} {number}" for number in range(_DSPRITES_CLASSES))


DERIVATIONS = {
    "clevr_count": Derivation(
        ("objects/size",), tuple(f"{n} objects" for n in range(3, 11)), _clevr_count
    ),
    "clevr_distance": Derivation(
        ("objects/pixel_coords",), _between(_CLEVR_BORDERS), _clevr_distance
    ),
    "kitti_distance": Derivation(
        ("objects/type", "objects/location"),
        (*_between(_KITTI_BORDERS[:2]), "no vehicle"),
        _kitti_distance,
    ),
    "dsprites_location": Derivation(
        ("label_x_position",), _numbered("place"), _grouped(_DSPRITES_PLACES)
    ),
    "dsprites_orientation": Derivation(
        ("label_orientation",), _numbered("angle"), _grouped(_DSPRITES_ANGLES)
    ),
}
