"""Hashes of evaluation sets, whose images must not be in a data set that is trained on.

The same tasks read them as the collection itself. They stay beside the data set as Parquet files,
which can be given in place of the images.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.core.errors import UserError, reading
from vit_jax.core.image_files import is_image_name
from vit_jax.data.source import Request
from vit_jax.data.sources import tfds
from vit_jax.data.sources.splits import ALL
from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import IMAGES_PER_PART, ImageRow, Part, RowAndBytes, is_text
from vit_jax.tools.prepare.duplicates import EvaluationSet
from vit_jax.tools.prepare.entries import raise_unreadable
from vit_jax.tools.prepare.image_folder import parts_of_folder

FLAG = "--drop_duplicates_of"
COLUMNS = ["sha256", "look"]
_READ_EXAMPLES = 64  # at once
# Only their hashes are kept: no copies, no conversion.
POLICY: faults.Policy = dict.fromkeys(faults.FAULTS, faults.SET_ASIDE)

Read = Callable[[Sequence[Part], str], pa.Table]


def load(paths: Sequence[str], read: Read) -> list[EvaluationSet]:
    """The sets at `paths`: data sets in TFDS layout, folders of images, Parquet files of hashes.

    A split of a data set is PATH:SPLIT, all of several splits are PATH:all. `read` makes a table of
    collection.SCHEMA of the parts of the set with this name.
    """
    sets: dict[str, EvaluationSet] = {}
    for path in paths:
        one = _load(path, read)
        names = (one.name, *(f"{one.name}-{number}" for number in range(2, len(paths) + 1)))
        name = next(name for name in names if name not in sets)
        sets[name] = one._replace(name=name)
    return list(sets.values())


def _load(text: str, read: Read) -> EvaluationSet:
    path, split = Path(text), ""
    if not path.exists():
        start, _, split = text.rpartition(":")
        path = Path(start or text)
    folder = tfds.find(path, where=FLAG) if path.is_dir() and is_text(text) else None
    if folder:
        name = f"{folder.parent.name}-{split}" if split else folder.parent.name
        return EvaluationSet(name, read(_examples(folder, split, text), name))
    if split or not path.exists() or not is_text(text):
        rule = "is not a file or folder with a name in UTF-8, or a split of a data set of TFDS."
        raise UserError(rule, field=FLAG, value=text)
    if path.is_file():
        with reading(FLAG, path):
            return EvaluationSet(path.stem, pq.read_table(path, columns=COLUMNS))
    return EvaluationSet(path.absolute().name, read(_images(path), path.absolute().name))


def digest(one: EvaluationSet) -> str:
    """A digest of its images that does not depend on their order; hexadecimal."""
    column = one.hashes["sha256"].to_numpy(zero_copy_only=False)
    return hashlib.sha256(b"".join(np.sort(column))).hexdigest()


def save(folder: Path, evaluations: Sequence[EvaluationSet]) -> None:
    """Writes hashes that can be given in place of the sets: `folder`/NAME.parquet."""
    for one in evaluations:
        folder.mkdir(exist_ok=True)
        pq.write_table(one.hashes.select(COLUMNS), folder / f"{one.name}.parquet")


def _examples(folder: Path, split: str, text: str) -> list[Part]:
    splits = tfds.split_sizes(folder)
    if split in splits:
        splits = {split: splits[split]}
    elif split != ALL and (split or len(splits) > 1):
        choices = " or ".join(f":{name}" for name in [*splits, ALL])
        raise UserError(f"has splits: end it with {choices}.", field=FLAG, value=text)
    return [
        Part(f"{split}[{start}:]", "tfds", str(folder), files=(f"{split}[{start}:{stop}]",))
        for split, size in splits.items()
        for start in range(0, size, IMAGES_PER_PART)
        for stop in [min(start + IMAGES_PER_PART, size)]
    ]


def examples(part: Part) -> Iterator[RowAndBytes]:
    """Images of a data set in TFDS layout; `part.files` holds the split instead."""
    (split,) = part.files
    source = tfds.Tfds(Request(split, part.path, labelled=False, where=FLAG))
    for start in range(0, source.num_examples, _READ_EXAMPLES):
        indices = np.arange(start, min(start + _READ_EXAMPLES, source.num_examples))
        for index, example in zip(indices, source.read(indices), strict=True):
            yield ImageRow(f"{split}, {index}"), example.image


def _images(root: Path) -> list[Part]:
    names, seen = [], {os.path.realpath(root)}
    for folder, folders, files in os.walk(root, onerror=raise_unreadable, followlinks=True):
        paths = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name, path in paths.items() if path not in seen]  # links in a circle
        seen.update(paths.values())
        images = (os.path.join(folder, name) for name in files if is_image_name(name))
        names += [os.path.relpath(path, root) for path in images if os.path.isfile(path)]
    if not names:
        raise UserError("has neither a dataset_info.json nor images.", field=FLAG, value=root)
    return parts_of_folder(root.name, root, sorted(names))
