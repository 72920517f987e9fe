"""Tars named as synsets (n01440764.tar), each with the images of one class."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from vit_jax.core.errors import UserError
from vit_jax.prepare.entry import Part
from vit_jax.prepare.readers import tars

_SYNSET = re.compile(r"(n\d{8})\.tar")


def listed(source: Path) -> list[Part]:
    """The tars, sorted, without labels. UserError if there are none, or one is there twice."""
    if source.is_dir():
        found = [Part(path.name, "tar", str(path)) for path in source.glob("*.tar")]
    elif source.is_file():
        with tars.Archive(Part(source.name, "tar", str(source))) as archive:
            found = [
                Part(PurePosixPath(info.name).name, "tar", str(source), info.offset_data, info.size)
                for info, fault in archive.files()
                if not fault or fault == "too_large"  # a tar may be
            ]
    else:
        raise UserError(f"--source={source}: no such file or folder.")
    tars_of_synsets = sorted(
        (part for part in found if _SYNSET.fullmatch(part.name)), key=lambda part: part.name
    )
    if not tars_of_synsets:
        raise UserError(
            f"{source} holds no tars named as synsets (n01440764.tar ...): neither the archive as "
            "published, nor a folder of the tars in it."
        )
    counts = collections.Counter(part.name for part in tars_of_synsets)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UserError(f"{source} holds {', '.join(twice[:5])} twice.")
    return tars_of_synsets


def synset(part: Part) -> str:
    """The WordNet id of a part's images."""
    return part.name.removesuffix(".tar")


def labelled(
    found: Sequence[Part], label: Mapping[str, int], *, split: str | None = None
) -> list[Part]:
    """The parts with the label of their synset. UserError if one has none."""
    if unknown := [synset(part) for part in found if synset(part) not in label]:
        raise UserError(
            f"{found[0].path} has synsets that do not belong there: {', '.join(unknown[:5])} "
            f"({len(unknown)} of {len(found)})."
        )
    return [replace(part, labels=(label[synset(part)],), split=split) for part in found]
