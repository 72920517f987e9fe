"""A request to a source."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class FileCache(NamedTuple):
    """The folder that copies are kept in."""

    folder: Path  # made if it is not there
    limit_bytes: int | None  # the most bytes in it; None: the disk is the limit
    progress: Callable[[int, int], None]  # called with the bytes copied so far, and all to copy


class TableOptions(NamedTuple):
    """The columns that `image_table` reads; see its fields of `input`. None: the usual name."""

    image_column: str | None = None
    split_column: str | None = None
    label_separator: str | None = None  # between the labels of a cell
    on_bad_image: str = "fail"  # "skip": images that are not there are bad ones; else an error


class Request(NamedTuple):
    """A request to a source, of which each source reads what concerns it."""

    split: str
    data_dir: str | None = None
    num_examples: int | None = None  # as declared
    num_classes: int | None = None
    image_size: tuple[int, int] = (1, 1)  # (height, width) of synthetic images
    cache: FileCache | None = None  # where record files are copied to
    label_weights: bool = True  # whether labels have the weights that the data give them
    label: str | None = None  # a feature of records, or derived from some: see tfds_labels.py
    labelled: bool = True  # whether images need labels; else those that are there are not read
    table: TableOptions = TableOptions()
    void: int | None = None  # the value of masks' pixels of no class; None: the source's
    # The config's section, for messages: "input", "input.mixture.birds", or "evals.test", whose
    # declared number of classes is the training data's.
    where: str = "input"
