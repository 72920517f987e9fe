"""Names of classes where weights have none, but their number says what they are."""

import jax.numpy as jnp

from vit_jax.core import synsets
from vit_jax.core.class_names import printable
from vit_jax.core.errors import UserError
from vit_jax.weights.loading import Loaded


def check_head(loaded: Loaded, checkpoint: str) -> None:
    """UserError for a head that was left out of released weights: it names no class."""
    if not jnp.any(loaded.model.head.kernel[...]):
        raise UserError(
            f"{checkpoint}: the kernel of its head is all zeros, as in the released weights of "
            "ImageNet-21k whose heads were left out: every class would be as likely. Fine-tune it: "
            f"vit-jax train --config finetune --config.init.weights={checkpoint}"
        )


def with_class_names(loaded: Loaded) -> tuple[Loaded, str]:
    """(the model with class names, also where its weights have none but these are known; a sentence
    about that, or "").

    Released heads of ImageNet come without names: 1,000 classes are taken for those of ImageNet-1k,
    21,843 for those of the released heads of ImageNet-21k, 21,841 for those of its archive of 2011.
    """
    names, title = names_of_classes(loaded.class_names, loaded.model.num_classes)
    loaded = loaded._replace(class_names=names)
    if not title:
        return loaded, ""
    assert names
    return loaded, (
        f"The weights do not name their classes; {len(names):,} is the number of those of "
        f"{title}, so these names are taken, in their order."
    )


def names_of_classes(
    names: tuple[str, ...] | None, num_classes: int
) -> tuple[tuple[str, ...] | None, str]:
    """(the names of a head's classes, whose they are if only their number says so, or "").

    Those that weights have are others' words, and are made printable.
    """
    if names:
        return tuple(map(printable, names)), ""
    of_21k = synsets.names()
    in_2011 = [name for synset, name in of_21k.items() if synset not in synsets.NOT_IN_FALL_2011]
    for title, known in (
        ("ImageNet-1k", list(synsets.names_1k().values())),
        ("ImageNet-21k in the released heads", list(of_21k.values())),
        ("ImageNet-21k in the archive of fall 2011", in_2011),
    ):
        if num_classes == len(known):
            return tuple(known), title
    return None, ""
