"""Metadata of a TFDS data set: dataset_info.json, features.json, names of the classes.

TFDS imports the Python module of every class that features.json names, and looks for it in the
current folder too. So the file is read here first, and TFDS gets a copy of what was read. It gets
no names: it would drop a line of spaces, and with it give later classes other numbers.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.data import files

INFO = "dataset_info.json"
FEATURES = "features.json"

HOW_TO_GET = (
    'To get a data set, for example CIFAR-10: python -c "import tensorflow_datasets as tfds; '
    "tfds.builder('cifar10', data_dir='DIR').download_and_prepare()\"; then set "
    "data_dir=DIR/cifar10. ImageNet (imagenet2012) has to be downloaded by hand first: its tar "
    "files, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, into DIR/downloads/manual."
)

# "type" with "content" beside it is how TFDS wrote it before 4.5. It takes both spellings.
_NAMES_CODE = ("pythonClassName", "python_class_name", "type")
_OF_TFDS = re.compile(r"tensorflow_datasets(\.[A-Za-z_]\w*)+")


def read_info(folder: str) -> Any:
    """tfds.core.DatasetInfo of the data set in `folder`, without class names.

    UserError if the files are missing or damaged, or name Python code that is not of TFDS.
    """
    try:
        parts = {name: files.read(files.join(folder, name)) for name in (INFO, FEATURES)}
        _check_code(f"{folder}/{FEATURES}", json.loads(parts[FEATURES].decode()))
        with tempfile.TemporaryDirectory() as copy:
            for name, content in parts.items():
                Path(copy, name).write_bytes(content)
            return _builder_info(copy)
    except UserError:
        raise
    except Exception as error:  # whatever tfds raises for damaged metadata
        raise UserError(
            f"{folder}: {INFO} or {FEATURES} is missing or damaged ({error}). {HOW_TO_GET}"
        ) from error


def _builder_info(folder: str) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder).info


def _check_code(where: str, features: Any) -> None:
    """UserError if anything in it, at whatever depth, names a class that is not of TFDS."""
    inside = [features]
    while inside:
        value = inside.pop()
        if isinstance(value, list):
            inside.extend(value)
        elif isinstance(value, dict):
            inside.extend(value.values())
            for key in _NAMES_CODE:
                name = value.get(key)
                if not isinstance(name, str) or (key == "type" and "content" not in value):
                    continue
                if not _OF_TFDS.fullmatch(name):
                    raise UserError(
                        f"{where} names the class {name!r}: to read the data set would run Python "
                        "code from outside of TFDS. Only features of tensorflow_datasets are read: "
                        "write the data set again with those, such as tfds.features.Image and "
                        "ClassLabel."
                    )
            if isinstance(value.get("json"), str):  # a feature that is written inside a string
                inside.append(json.loads(value["json"]))


def class_names(folder: str, feature: str, num_classes: int) -> tuple[str, ...] | None:
    """The lines of `<feature>.labels.txt`, the names of the classes by their numbers.

    None if there is no such file; `num_classes` 0: as many as there are lines. UserError if it has
    another number of them, twice the same, or is not UTF-8.
    """
    path = files.join(folder, f"{feature}.labels.txt")
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path} is not UTF-8: line {line} has the byte 0x{error.object[error.start]:02x}. "
            "Convert it, from Latin-1 for example: iconv -f latin1 -t utf8."
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    # Spaces belong to the names of folders; empty lines, such as the last one, name nothing.
    names = [line for line in lines if line]
    if num_classes and len(names) != num_classes:
        raise UserError(
            f"{path} has the names of {len(names):,} classes, but {FEATURES} says that there are "
            f"{num_classes:,}: names would belong to other classes. Give it one line a class, in "
            "the order of their numbers, or delete it."
        )
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        if places.setdefault(name, number) != number:
            raise UserError(
                f"{path}: classes {places[name]} and {number} are both named {name!r}. Give each a "
                "name of its own, or delete the file."
            )
    return tuple(names)
