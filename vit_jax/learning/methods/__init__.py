"""Methods of pre-training, one file each, and their table: config.method.kind."""

import dataclasses

from vit_jax.core import errors
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import field
from vit_jax.learning.methods.dino import DINO
from vit_jax.learning.methods.distillation import Distillation
from vit_jax.learning.methods.mae import MAE
from vit_jax.learning.methods.masked_patch import MaskedPatch

SUPERVISED = "supervised"


@dataclasses.dataclass(frozen=True)
class Supervised:
    """Learning from labels, by the loss of the section `loss`."""

    kind: str = field(SUPERVISED)


METHODS: dict[str, type] = {
    SUPERVISED: Supervised,
    "dino": DINO,
    "distillation": Distillation,
    "mae": MAE,
    "masked_patch": MaskedPatch,
}


def find(kind: str) -> type:
    """The dataclass of a method's fields. UserError for one that is not there."""
    if kind in METHODS:
        return METHODS[kind]
    method = entry_points.find("methods", kind)
    if method is None:
        names = [*METHODS, *entry_points.names("methods")]
        raise errors.UserError(f"config.method.kind={kind!r}. {errors.nearest(kind, names)}")
    return method
