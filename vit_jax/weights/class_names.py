"""What classes are called, where the weights do not say it."""

from __future__ import annotations

from vit_jax.data import synsets
from vit_jax.weights import Loaded


def complete(loaded: Loaded) -> tuple[Loaded, str]:
    """(the model with names if these can be known, a sentence that says whence, or "").

    The released heads of ImageNet-21k come without names; no others have so many classes.
    """
    names = tuple(synsets.names().values())
    if loaded.class_names or loaded.model.num_classes != len(names):
        return loaded, ""
    said = (
        f"The weights name no classes; {len(names):,} is the number of ImageNet-21k's in the "
        "released heads, so these are taken, in their order."
    )
    return loaded._replace(class_names=names), said
