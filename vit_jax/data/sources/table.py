"""The table of sources."""

from collections.abc import Callable
from typing import NamedTuple

from vit_jax.core.errors import UserError, nearest
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.fields import MOST_CLASSES
from vit_jax.data.source import Example, JoinedSource, Source, Unlabelled
from vit_jax.data.sources import splits
from vit_jax.data.sources.builtin import Digits, Synthetic
from vit_jax.data.sources.caches import FileCache
from vit_jax.data.sources.image_folder import ImageFolder, find_root
from vit_jax.data.sources.tfds import Tfds, find_folder

__all__ = ["SOURCES", "Example", "Request", "Source", "create"]


class Request(NamedTuple):
    """The arguments for a source; each source reads those that concern it."""

    data_dir: str | None
    split: str
    num_examples: int | None
    num_classes: int | None
    image_size: tuple[int, int]
    cache: FileCache | None
    label_weights: bool
    label: str | None
    labelled: bool
    where: str  # the config's section, for messages


SOURCES: dict[str, Callable[[Request], Source]] = {
    "digits": lambda r: Digits(r.split, where=r.where),
    "tfds": lambda r: Tfds(
        r.data_dir,
        r.split,
        r.num_classes,
        where=r.where,
        cache=r.cache,
        label_weights=r.label_weights,
        label=r.label,
        labelled=r.labelled,
    ),
    "image_folder": lambda r: ImageFolder(r.data_dir, r.split, where=r.where, labelled=r.labelled),
    "synthetic": lambda r: Synthetic(r.num_examples, r.num_classes, r.image_size),
}


WITHOUT_SPLITS = ("synthetic",)
# Sources that read from a `data_dir`: finds their folder.
FOLDERS: dict[str, Callable[..., str]] = {"tfds": find_folder, "image_folder": find_root}


def has_folder(name: str) -> bool:
    """Whether a source reads from a `data_dir`; one of another package may."""
    return name in FOLDERS or name not in SOURCES


def check_folder(name: str, data_dir: str | None, *, where: str) -> None:
    """Checks what the folder of a source shows, without its files or TensorFlow: UserError.

    The source is unknown, or its folder is not given, does not exist or is of another kind.
    """
    if _find(name) is None:
        there = [*SOURCES, *entry_points.names("sources")]
        raise UserError(f"{where}.source={name!r}: there is no such source. {nearest(name, there)}")
    if data_dir is not None and not has_folder(name):
        raise UserError(
            f"{where}.data_dir={data_dir}, but {where}.source={name!r} reads no folder. Set "
            f'{where}.source="image_folder" or "tfds" to read that one, or {where}.data_dir=none.'
        )
    if name in FOLDERS:
        FOLDERS[name](data_dir, where=where)


def _find(name: str) -> Callable[[Request], Source] | None:
    return SOURCES.get(name) or entry_points.find("sources", name)


def _opened(name: str, request: Request) -> Source:
    """The split, or its slices one behind the other."""
    slices, make = splits.parts(request.split), _find(name)
    assert make is not None, "check_folder has looked"
    if name in WITHOUT_SPLITS or len(slices) == 1:
        return make(request)
    opened = [make(request._replace(split=part)) for part in slices]
    splits.check_disjoint([part.part for part in opened], request.split, where=request.where)
    return JoinedSource(opened)


def create(
    name: str,
    *,
    data_dir: str | None,
    split: str,
    num_examples: int | None,
    num_classes: int | None,
    image_size: tuple[int, int],
    cache: FileCache | None = None,
    label_weights: bool = True,
    label: str | None = None,
    labelled: bool = True,
    where: str = "input",
) -> Source:
    """The split of a data set, its counts checked against the declared ones.

    `image_size` (height, width) applies to synthetic images, `cache` to record files, which are
    copied there; `label_weights` says whether labels have the weights that the data give them;
    `label` which feature of records the label is, or how it is derived (see tfds_labels.py);
    without `labelled` images need no labels, and those that are there are not read;
    `where` is the config's section that asks: "input", "input.mixture.birds", or "evals.test",
    whose declared number of classes is the training data's. UserError for an unknown source or
    split, missing data (and how to get it), and counts that are not the declared ones.
    """
    check_folder(name, data_dir, where=where)
    if label is not None and name != "tfds":
        raise UserError(
            f"{where}.label={label}, but examples of {where}.source={name!r} have one label and no "
            f'other feature. Set {where}.label=none, or {where}.source="tfds".'
        )
    request = Request(
        data_dir=data_dir,
        split=split,
        num_examples=num_examples,
        num_classes=num_classes,
        image_size=image_size,
        cache=cache,
        label_weights=label_weights,
        label=label,
        labelled=labelled,
        where=where,
    )
    source = _opened(name, request)
    if not labelled:
        source, num_classes = Unlabelled(source), None
    data = f"({source.name}, {split})"
    if source.num_classes > MOST_CLASSES:
        raise UserError(
            f"{where}: {source.num_classes:,} classes {data}; {MOST_CLASSES:,} are the most. Each "
            f"image needs a vector of so many numbers, {4 * source.num_classes:,} bytes. Correct "
            "the data, or input.num_classes."
        )
    # An evaluation has no such field: it is declared to have the training data's classes.
    if where.startswith("evals.") and num_classes not in (None, source.num_classes):
        raise UserError(
            f"{where} has other classes than the model: {source.num_classes} {data} "
            f"against {num_classes}. Its accuracy would mean nothing; correct {where}.source, "
            f"{where}.data_dir or {where}.split."
        )
    for field, declared, actual in (
        (f"{where}.num_examples", num_examples, source.num_examples),
        ("input.num_classes", num_classes, source.num_classes),
    ):
        if declared not in (None, actual):
            raise UserError(
                f"{field}={declared}, but the data have {actual} {data}. Correct it, or "
                f"{where}.split or {where}.data_dir."
            )
    return source
