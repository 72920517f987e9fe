"""Images to try a model with: files, or some of the data that it was trained on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError, reading
from vit_jax.core.files import is_remote
from vit_jax.data.source import Request, Source
from vit_jax.data.sources.image_table import open_folder
from vit_jax.data.sources.table import Digits
from vit_jax.models import images
from vit_jax.store import workdir

MAX_EXAMPLES = 24


class Sample(NamedTuple):
    name: str
    data: bytes


def find(paths: list[str], checkpoint: str) -> list[Sample]:
    """Takes up to `MAX_EXAMPLES` images from paths, or else from the run's data, if they exist."""
    if paths:
        files = images.find(paths, sys.stderr)
        chosen = [files[place] for place in images.evenly_spaced(len(files), MAX_EXAMPLES)]
        with reading("--examples", ",".join(paths)):
            return [Sample(file.stem, file.read_bytes()) for file in chosen]
    try:
        return _samples_of_run(checkpoint)
    except (UserError, OSError):
        return []


def _samples_of_run(checkpoint: str) -> list[Sample]:
    folder = Path(checkpoint).expanduser()
    folders = [folder, *folder.absolute().parents[:2]]  # a step's folder is two below
    workdirs = [each for each in folders if (each / workdir.CONFIG_FILE).is_file()]
    if is_remote(checkpoint) or not workdirs:
        return []
    config = workdir.read_document(workdirs[0])["config"]
    source = _source(config["input"])
    if source is None:
        return []
    places = images.evenly_spaced(source.num_examples, MAX_EXAMPLES)
    read = source.read(np.array(places))
    names = [source.describe(place) for place in places]
    if source.class_names:
        names = [source.class_names[example.labels[0]] for example in read]
    return [Sample(name, each.image) for name, each in zip(names, read, strict=True)]


def _source(section: dict[str, Any]) -> Source | None:
    if section["source"] == "digits":
        return Digits(Request("test", where="input.split"))
    if section["source"] == "image_folder":
        return open_folder(Request("val", section["data_dir"], where="input.split"))
    return None
