"""The table of sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vit_jax.core.errors import UserError, nearest
from vit_jax.data.digits import Digits
from vit_jax.data.example import Example, Source
from vit_jax.data.image_folder import ImageFolder
from vit_jax.data.synthetic import Synthetic
from vit_jax.data.tfds import Tfds

__all__ = ["SOURCES", "Example", "Request", "Source", "create"]


class Request(NamedTuple):
    """What is asked of a source; each looks at what concerns it."""

    data_dir: str | None
    split: str
    num_examples: int | None
    num_classes: int | None
    image_size: tuple[int, int]


SOURCES: dict[str, Callable[[Request], Source]] = {
    "digits": lambda r: Digits(r.split),
    "tfds": lambda r: Tfds(r.data_dir, r.split, r.num_classes),
    "image_folder": lambda r: ImageFolder(r.data_dir, r.split),
    "synthetic": lambda r: Synthetic(r.num_examples, r.num_classes, r.image_size),
}


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
    split, missing data (and how to get it), and counts that are not the declared ones.
    """
    if name not in SOURCES:
        raise UserError(f"input.source={name!r}: there is no such source. {nearest(name, SOURCES)}")
    source = SOURCES[name](Request(data_dir, split, num_examples, num_classes, image_size))
    _check("input.num_examples", num_examples, source.num_examples, source, split)
    _check("input.num_classes", num_classes, source.num_classes, source, split)
    return source


def _check(field: str, declared: int | None, found: int, source: Source, split: str) -> None:
    if declared is not None and declared != found:
        raise UserError(
            f"{field}={declared}, but the data have {found} ({source.name}, {split}). Correct it, "
            "or input.split or input.data_dir."
        )
