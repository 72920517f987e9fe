"""The data of VTAB's tasks below TFDS's folder: what is missing, and what there is instead.

Only metadata, and the thousand examples to train on, are looked at: nothing of a test.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.core.errors import NOT_MADE, ErrorCollector, UserError
from vit_jax.data import files
from vit_jax.data.order import label_index
from vit_jax.data.source import Source
from vit_jax.data.sources import table as sources
from vit_jax.data.sources import tfds
from vit_jax.tools.lab.vtab.table import JPEG, PNG, TASKS, VtabTask

_MAGIC = {b"\xff\xd8\xff": JPEG, b"\x89PNG": PNG}
_LOOKED_AT = 100  # images
_BY_HAND = ("diabetic_retinopathy_detection", "resisc45")  # TFDS cannot download them


class TaskData(NamedTuple):
    """What there is of a task.

    Attributes:
      folder: the folder with dataset_info.json.
      name: the data set and its version, "cifar100 3.0.2".
      changed: how it differs from the benchmark's; "" if it does not, as far as was looked.
      formats: the formats of the first training images, most frequent first.
      absent: classes without an example among the thousand.
    """

    folder: str
    name: str
    changed: str
    formats: tuple[str, ...]
    absent: int

    def images(self, task: VtabTask) -> str:
        """The bytes that were read, in words."""
        there = " and ".join(self.formats)
        if set(self.formats) == {task.stored}:
            return f"{there}, as TFDS stores them"
        return f"{there} where TFDS stores {task.stored}: not the original images"


def look(names: Sequence[str], root: str) -> dict[str, TaskData]:
    """The data of these tasks below `root`, the data_dir of TFDS.

    UserError that lists all that are missing, with how to get them or to go without, and whatever
    is wrong with others.
    """
    folders = {name: _folder(TASKS[name], root) for name in names}
    missing = [name for name, folder in folders.items() if folder is None]
    errors = ErrorCollector()
    if missing:
        errors.attempt("data", _tell_missing, missing, names, root)
    found = {
        name: errors.attempt(name, _look_at, name, folder)
        for name, folder in folders.items()
        if folder is not None
    }
    errors.raise_all()
    return {name: data for name, data in found.items() if data is not NOT_MADE}


def _folder(task: VtabTask, root: str) -> str | None:
    try:
        return tfds.find_folder(files.join(root, *task.folder.split("/")), where="--data")
    except UserError:
        return None


def _tell_missing(names: Sequence[str], asked: Sequence[str], root: str) -> None:
    """Raises the UserError about data sets that are not there."""
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(TASKS[name].folder, []).append(name)
    lines = "".join(
        f"\n  {folder:41} for {', '.join(tasks)}" for folder, tasks in by_folder.items()
    )
    first = next(iter(by_folder))
    by_hand = [folder for folder in by_folder if folder.startswith(_BY_HAND)]
    what = "is not there" if not files.is_folder(root) else f"lacks {len(by_folder)} data sets"
    rest = [name for name in asked if name not in names]
    remedy = f"--leave_out={','.join(names)}" if len(asked) == len(TASKS) else ""
    remedy = remedy or f"--tasks={','.join(rest)}"
    raise UserError(
        f"--data={root} {what}:{lines}\n"
        'Each is made by TFDS: python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{first}', data_dir='{root}').download_and_prepare()\""
        + (f"; its page says how to download {' and '.join(by_hand)} by hand" if by_hand else "")
        + (f". Or go without them, and without a mean over all: {remedy}" if rest else ".")
    )


def _look_at(name: str, folder: str) -> TaskData:
    task = TASKS[name]
    info = tfds.read_info(folder)
    sizes = {split: each.num_examples for split, each in info.splits.items()}
    source = sources.create(
        "tfds",
        data_dir=folder,
        split=task.train_held_out,
        num_examples=None,
        num_classes=task.num_classes,
        image_size=(1, 1),
        label=task.label,
        where=name,
    )
    labels = label_index.find(source)
    return TaskData(
        folder,
        f"{task.folder} {info.version}",
        _changed(task, str(info.version), sizes),
        _formats(source),
        task.num_classes - len(np.unique(labels.labels)),
    )


def _changed(task: VtabTask, version: str, sizes: Mapping[str, int]) -> str:
    said = []
    if int(version.split(".", maxsplit=1)[0]) != task.version:
        said.append(f"the benchmark reads version {task.version}")
    for split, size in task.sizes.items():
        if sizes.get(split) != size:
            said.append(f"{sizes.get(split, 0):,} in {split} instead of {size:,}")
    return "; ".join(said)


def _formats(source: Source) -> tuple[str, ...]:
    examples = source.read(np.arange(min(_LOOKED_AT, source.num_examples)))
    counts = Counter(
        next((name for magic, name in _MAGIC.items() if example.image.startswith(magic)), "others")
        for example in examples
    )
    return tuple(name for name, _ in counts.most_common())
