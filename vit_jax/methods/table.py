"""The table of methods: config.method.kind.

A method's file is imported when a config asks for it: it imports JAX, and most configs learn from
labels.
"""

import dataclasses
from collections.abc import Callable

from vit_jax.core import errors
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field

SUPERVISED = "supervised"


@dataclasses.dataclass(frozen=True)
class Supervised:
    """Learning from labels, by the loss of the section `loss`."""

    kind: str = field(SUPERVISED)


def _dino() -> type:
    from vit_jax.methods.dino import DINO

    return DINO


def _distillation() -> type:
    from vit_jax.methods.distillation import Distillation

    return Distillation


def _mae() -> type:
    from vit_jax.methods.mae import MAE

    return MAE


def _masked_patch() -> type:
    from vit_jax.methods.masked_patch import MaskedPatch

    return MaskedPatch


METHODS: dict[str, Callable[[], type]] = {
    SUPERVISED: lambda: Supervised,
    "dino": _dino,
    "distillation": _distillation,
    "mae": _mae,
    "masked_patch": _masked_patch,
}


def find(kind: str) -> type:
    """The dataclass of a method's fields. UserError for one that is not there."""
    if kind in METHODS:
        return METHODS[kind]()
    found = entry_points.find("methods", kind)
    if found is None:
        there = [*METHODS, *entry_points.names("methods")]
        raise errors.UserError(f"config.method.kind={kind!r}. {errors.nearest(kind, there)}")
    return found
