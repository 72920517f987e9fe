"""The labels of the examples of a TFDS data set: a feature of theirs, or computed from others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError, nearest, reading
from vit_jax.data import files
from vit_jax.data.source import Request
from vit_jax.data.sources.tfds_writer import WEIGHTS

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
    """A class from features."""

    # Their names, as TFDS stores them: "objects/size" holds the sizes of all objects.
    features: tuple[str, ...]
    class_names: tuple[str, ...]  # one a class, in order
    # The class from the values of each, flat arrays; a number outside of the classes where there is
    # none.
    derive: Callable[..., int]


def _clevr_distance(coordinates: np.ndarray) -> int:
    """The class of the closest object's distance; three coordinates an object."""
    nearest = coordinates.reshape(-1, 3)[:, 2].min(initial=np.inf)
    if not 0 < nearest <= _CLEVR_FARTHEST:
        return OUTSIDE
    return int(np.searchsorted(_CLEVR_BORDERS, nearest))


def _kitti_distance(types: np.ndarray, locations: np.ndarray) -> int:
    """The class of the closest vehicle's distance; three coordinates a vehicle."""
    depths = locations.reshape(-1, 3)[types < _KITTI_VEHICLES, 2]
    nearest = depths.min(initial=_KITTI_NO_VEHICLE)
    return int(np.searchsorted(_KITTI_BORDERS, nearest)) if nearest > _KITTI_NEAREST else OUTSIDE


def _grouped(values: int) -> Callable[[np.ndarray], int]:
    """Neighbouring ones of so many values, in 16 classes."""
    return lambda value: int(value[0]) * _DSPRITES_CLASSES // values


def _between(borders: tuple[float, ...]) -> tuple[str, ...]:
    first, last = f"up to {borders[0]:g}", f"above {borders[-1]:g}"
    return (first, *(f"{a:g} to {b:g}" for a, b in itertools.pairwise(borders)), last)


def _numbered(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix} {number}" for number in range(_DSPRITES_CLASSES))


DERIVATIONS = {
    "clevr_count": Derivation(
        ("objects/size",),
        tuple(f"{n} objects" for n in range(3, 11)),
        lambda sizes: len(sizes) - _CLEVR_FEWEST,
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


FEATURES = "features.json"


class LabelReader:
    """Reads the labels of records.

    Attributes:
      is_usual: the label is that taken by default: `label`, else the list `labels`.
      is_list: an example has any number of labels.
      mask: the feature with the class of each pixel, in place of labels.
    """

    num_classes: int
    class_names: tuple[str, ...] | None
    mask: str | None

    def __init__(self, folder: str, features: Any, r: Request) -> None:
        """`r.label`: a name of DERIVATIONS, or of a feature; None for the usual one."""
        usual = [key for key in ("label", "labels") if key in features]
        self._key = label = r.label or next(iter(usual), "label")
        self.is_usual = label in usual[:1]
        self._derivation: Derivation | None = None
        self.mask, self.is_list, self.weighted = None, False, False
        if label in features and tuple(features[label].shape)[2:] == (1,):
            self.mask, self.num_classes = label, r.num_classes or 0
            if not r.num_classes:
                rule = f"has to say how many classes the masks of {folder} have."
                raise UserError(rule, field="input.num_classes", value=None)
            self.class_names = class_names(folder, label, r.num_classes)
            return
        is_label = label in usual
        self.weighted = is_label and r.label_weights and WEIGHTS in features
        if self.weighted:
            rule = (
                "a list of numbers, not encoded, one for each label; or input.label_weights=false."
            )
            _check_stored(folder, WEIGHTS, features, "biuf", rule)
        if is_label:
            feature = getattr(features[label], "feature", features[label])  # of one label
            rule = "the number of a class, or a list of such: a ClassLabel, or a Sequence of it."
            _check_stored(folder, label, features, "biu", rule, excluded=r.num_classes)
        else:
            feature = _feature(folder, features, label, r.where)
        self.is_list = is_label and label == "labels"
        if label in DERIVATIONS and not is_label:
            self._derivation = DERIVATIONS[label]
            self.class_names = self._derivation.class_names
            self.num_classes = len(self.class_names)
        else:
            self.num_classes, self.class_names = _classes(folder, label, feature, r.num_classes)

    def labels(self, feature: Any) -> tuple[int, ...]:
        """The labels of a record with this `feature`, a map. ValueError if they are wrong."""
        if self.mask is not None:
            return ()
        if self._derivation is not None:
            return (self._derived(self._derivation, feature),)
        labels = feature[self._key].int64_list
        return tuple(labels.value) if self.is_list else (only_value(labels, self._key),)

    def weights(self, feature: Any) -> tuple[float, ...]:
        """The weights of its labels; () where they have none."""
        return tuple(_values(feature[WEIGHTS])) if self.weighted else ()

    def _derived(self, derivation: Derivation, feature: Any) -> int:
        values = {name: np.array(_values(feature[name])) for name in derivation.features}
        with contextlib.suppress(ValueError, IndexError):
            label = derivation.derive(*values.values())
            if 0 <= label < self.num_classes:
                return label
        given = " and ".join(f"{len(value)} values of `{name}`" for name, value in values.items())
        raise ValueError(f"{given} give no class of input.label={self._key}")


def only_value(stored: Any, name: str) -> Any:
    """The value of a feature that has one. ValueError if it has another number of them."""
    if len(stored.value) != 1:
        raise ValueError(f"{len(stored.value)} values of `{name}`, not one")
    return stored.value[0]


def _values(stored: Any) -> list[float]:
    return list(stored.float_list.value or stored.int64_list.value)


def _has(features: Any, name: str) -> bool:
    """Whether there is a feature such as "objects/size", of the items of a sequence."""
    inside = features
    for part in name.split("/"):
        inside = getattr(inside, "feature", inside)  # of a sequence: of one of its items
        if part not in inside:
            return False
        inside = inside[part]
    return True


def _feature(folder: str, features: Any, label: str, where: str) -> Any:
    """The feature of that name, one whole number; None for a derived one. UserError."""
    whole = {
        name: feature
        for name, feature in features.items()
        if feature.shape == () and np.issubdtype(feature.np_dtype, np.integer)
    }
    derived = DERIVATIONS[label].features if label in DERIVATIONS else ()
    if label not in whole and not (derived and all(_has(features, name) for name in derived)):
        rule = f"is not one whole number in {folder}. {nearest(label, [*whole, *DERIVATIONS])}"
        raise UserError(rule, field=f"{where}.label", value=label)
    return whole.get(label)


def class_names(folder: str, feature: str, num_classes: int) -> tuple[str, ...] | None:
    """The lines of `<feature>.labels.txt`, the names of the classes by their numbers.

    None if there is no such file; `num_classes` 0: as many as there are lines.
    """
    path = files.join(folder, f"{feature}.labels.txt")
    try:
        content = files.read(path)
    except FileNotFoundError:
        return None
    with reading(path):
        lines = [line.removesuffix("\r") for line in content.decode().split("\n")]
        # Spaces belong to the names of folders; empty lines, such as the last one, name nothing.
        names = [line for line in lines if line]
        twice = next((a for a, b in itertools.pairwise(sorted(names)) if a == b), None)
        if len(names) != (num_classes or len(names)) or twice is not None:
            more = "" if twice is None else f", two of them {twice!r}"
            raise ValueError(f"{len(names):,} classes{more}, {FEATURES} has {num_classes:,}")
    return tuple(names)


def _check_stored(
    folder: str, name: str, features: Any, kinds: str, rule: str, *, excluded: int | None = None
) -> None:
    """Refuses records without a list of numbers of these NumPy `kinds`: it would not be read.

    excluded: a length that the list does not have in all records.
    """
    stored = features[name].get_serialized_info()  # a dict where it consists of others
    if (
        isinstance(stored, dict)
        or np.dtype(stored.np_dtype).kind not in kinds
        or len(stored.shape) > 1
        or stored.shape == (excluded or 0,)
    ):
        text = " ".join(str(features[name]).split())
        raise UserError(f"{folder}: {name} is stored as {text}; it must be {rule}")


def _classes(
    folder: str, key: str, label: Any, declared: int | None
) -> tuple[int, tuple[str, ...] | None]:
    published: int | None = getattr(label, "num_classes", None)
    names = None if published is None else class_names(folder, key, published)
    published = published or len(names or ())
    if not published:
        if declared is None:
            raise UserError(f"{folder} does not say how many classes it has; set input.num_classes")
        return declared, None
    if names and names != tuple(str(i) for i in range(published)):  # digits are the numbers
        return published, names
    # Without names a larger number is possible, a smaller one is not.
    return max(declared or 0, published), None
