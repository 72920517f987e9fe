"""The table of sources."""

from __future__ import annotations

from vit_jax.core.errors import UserError, nearest
from vit_jax.data.digits import Digits
from vit_jax.data.example import Example, Source

__all__ = ["SOURCES", "Example", "Source", "create"]


def _digits(*, split: str, **_: object) -> Source:
    return Digits(split)


SOURCES = {"digits": _digits}


def create(
    name: str,
    *,
    data_dir: str | None,
    split: str,
    num_examples: int | None,
    num_classes: int | None,
    image_size: tuple[int, int],
) -> Source:
    """The split of a data set, its counts checked against the declared ones.

    `image_size` (height, width) is that of synthetic images. UserError for an unknown source or
    split, missing data (and how to get it), and counts that differ.
    """
    if name not in SOURCES:
        raise UserError(f"input.source={name!r}: no such source. {nearest(name, SOURCES)}")
    return SOURCES[name](
        data_dir=data_dir,
        split=split,
        num_examples=num_examples,
        num_classes=num_classes,
        image_size=image_size,
    )
