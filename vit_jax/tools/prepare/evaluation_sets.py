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

from vit_jax.core.errors import UserError, explain_unreadable
from vit_jax.core.image_files import is_image_name
from vit_jax.data.sources import tfds
from vit_jax.data.sources.request import Request
from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import IMAGES_PER_PART, ImageRow, Part, RowAndBytes, is_text
from vit_jax.tools.prepare.duplicates import EvaluationSet
from vit_jax.tools.prepare.image_folder import parts_of_folder
from vit_jax.tools.prepare.split_assignment import ALL

FLAG = "--drop_duplicates_of"
COLUMNS = ["sha256", "look"]
_READ_EXAMPLES = 64  # at once
# Only their hashes are kept: no copies, no conversion.
POLICY: faults.Policy = dict.fromkeys(faults.FAULTS, faults.SET_ASIDE)

Read = Callable[[Sequence[Part], str], pa.Table]


def load(paths: Sequence[str], read: Read) -> list[EvaluationSet]:
    """The sets at `paths`: data sets in TFDS layout, folders of images, Parquet files of hashes.

    A split of a data set is PATH:SPLIT, all of several splits are PATH:all. `read` makes a table of
    collection.SCHEMA of the parts of the set with this name. UserError if a path is none of these,
    or does not say which of several splits is meant.
    """
    sets: dict[str, EvaluationSet] = {}
    for path in paths:
        one = _load(path, read)
        names = (one.name, *(f"{one.name}-{number}" for number in range(2, len(paths) + 1)))
        name = next(name for name in names if name not in sets)
        sets[name] = one._replace(name=name)
    return list(sets.values())


def _load(text: str, read: Read) -> EvaluationSet:
    path, split = Path(text).expanduser(), ""
    if not text:
        raise UserError(f"{FLAG} is empty: name a data set, a folder or a file, or leave it out.")
    if not is_text(text):
        raise UserError(f"{FLAG}={text!r}: the path is not UTF-8: rename it, or give a link to it.")
    if not path.exists():
        start, _, split = text.rpartition(":")
        path = Path(start).expanduser()
        if not start or not path.exists():
            raise UserError(f"{FLAG}={text}: no such file or folder.")
    folder = tfds.find(path, where=FLAG) if path.is_dir() else None
    if folder:
        name = f"{folder.parent.name}-{split}" if split else folder.parent.name
        return EvaluationSet(name, read(_examples(folder, split, text), name))
    if split:
        raise UserError(
            f"{FLAG}={text}: {path} is not a data set in TFDS layout, and has no splits."
        )
    if path.is_file():
        try:
            return EvaluationSet(path.stem, pq.read_table(path, columns=COLUMNS))
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{FLAG}={path}: not a Parquet file with the columns {' and '.join(COLUMNS)}, as a "
                f"preparation leaves it ({error})."
            ) from error
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
    """Parts of the chosen splits. UserError if it is not clear which is meant."""
    splits = tfds.split_sizes(folder)
    if split in splits:
        splits = {split: splits[split]}
    elif split != ALL and (split or len(splits) > 1):
        path = text.removesuffix(f":{split}")
        choices = " or ".join(f"{path}:{name}" for name in [*splits, ALL])
        raise UserError(f"{FLAG}={text}: say which split is evaluated on, {choices}.")
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
    for folder, folders, files in os.walk(root, onerror=_raise, followlinks=True):
        paths = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name, path in paths.items() if path not in seen]  # links in a circle
        seen.update(paths.values())
        names += [
            os.path.relpath(os.path.join(folder, name), root)
            for name in files
            if is_image_name(name) and os.path.isfile(os.path.join(folder, name))
        ]
    names.sort()
    if not names:
        raise UserError(
            f"{FLAG}={root} is neither a data set in TFDS layout (it has no dataset_info.json) nor "
            "a folder with images in it."
        )
    return parts_of_folder(root.name, root, names)


def _raise(error: OSError) -> None:
    with explain_unreadable(error.filename):
        raise error
