"""ImageNet-21k from the official archives: a tar for each synset (n01440764.tar).

https://image-net.org: `fall11_whole.tar` (21,841 tars in a tar) and `winter21_whole.tar.gz` (19,167
of them); or a folder with the inner tars.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from vit_jax.core import synsets
from vit_jax.core.errors import UserError
from vit_jax.core.image_files import is_hidden
from vit_jax.tools.prepare.collection import Collection, CollectionRequest, Part
from vit_jax.tools.prepare.readers import tars
from vit_jax.tools.prepare.readers.image_folder import PassedOver

SPLITS = "test=25600,validation=25600,train=rest"
ORDERS = ("released", "archive")
_TAR_NAME = re.compile(r"(n\d{8})\.tar")


def collection(request: CollectionRequest) -> Collection:
    """All synsets of the source. UserError if it is not ImageNet-21k."""
    known = synsets.names()
    parts = synset_tars(Path(request.source))
    ids = [synset_of(part) for part in parts]
    order = list(known) if request.label_order == "released" else sorted(set(ids) & set(known))
    labels = {synset: number for number, synset in enumerate(order)}
    return Collection(
        name="imagenet21k",
        description="ImageNet-21k (https://image-net.org), images as published.",
        class_names=[known[synset] for synset in order],
        parts=[*labelled(parts, labels), *others(Path(request.source))],
        splits=SPLITS,
        notes=[release(ids)],
    )


def release(ids: Sequence[str]) -> str:
    """A sentence that names the archive with these synsets."""
    fall = set(synsets.names()) - set(synsets.NOT_IN_FALL_2011)
    if set(ids) == fall:
        return f"All {len(fall):,} synsets of fall 2011."
    if len(ids) == synsets.WINTER_2021 and set(ids) < fall:
        return f"{len(ids):,} synsets, as many as winter 2021 has, all of them in fall 2011."
    missing = sorted(fall - set(ids))
    return (
        f"{len(ids):,} synsets: neither fall 2011 ({len(fall):,}) nor winter 2021 "
        f"({synsets.WINTER_2021:,}). Of fall 2011 {len(missing):,} are missing, "
        f"first {', '.join(missing[:3])}."
    )


def synset_tars(source: Path) -> list[Part]:
    """Parts for the tars, sorted, without labels. UserError if there are none, or duplicates."""
    return [part for part in _parts(source) if part.reader == "tar"]


def others(source: Path) -> list[Part]:
    """Parts of what is no synset's tar and is left out, for the counts of the report."""
    return [part for part in _parts(source) if part.reader != "tar"]


def _parts(source: Path) -> list[Part]:
    passed_over = PassedOver()
    if source.is_dir():
        names = sorted(path.name for path in source.iterdir())
        parts = [Part(name, "tar", str(source / name)) for name in names if name.endswith(".tar")]
        for name in names:
            if not _TAR_NAME.fullmatch(name):
                passed_over.pass_over(source, name)
    elif source.is_file():
        with tars.Archive(Part(source.name, "tar", str(source))) as archive:
            parts = []
            for info, fault in archive.files():
                name = PurePosixPath(info.name).name
                if fault not in ("", "too_large"):  # as a tar may be
                    passed_over.add(fault, info.name)
                elif not _TAR_NAME.fullmatch(name):
                    passed_over.add("hidden" if is_hidden(name) else "beside_classes", info.name)
                else:
                    parts.append(Part(name, "tar", str(source), info.offset_data, info.size))
    else:
        raise UserError(f"--source={source}: no such file or folder.")
    parts = sorted((p for p in parts if _TAR_NAME.fullmatch(p.name)), key=lambda part: part.name)
    if not parts:
        raise UserError(
            f"{source} holds no tars named as synsets (n01440764.tar ...): neither the archive as "
            "published, nor a folder of the tars in it."
        )
    counts = collections.Counter(part.name for part in parts)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UserError(f"{source} holds {', '.join(twice[:5])} twice.")
    return [*parts, *passed_over.parts(source)]


def synset_of(part: Part) -> str:
    """The WordNet id of a part's images."""
    return part.name.removesuffix(".tar")


def labelled(
    parts: Sequence[Part], label: Mapping[str, int], *, split: str | None = None
) -> list[Part]:
    """The parts with the labels of their synsets. UserError if a synset has none."""
    if unknown := [synset_of(part) for part in parts if synset_of(part) not in label]:
        raise UserError(
            f"{parts[0].path} has synsets that do not belong there: {', '.join(unknown[:5])} "
            f"({len(unknown)} of {len(parts)})."
        )
    return [
        dataclasses.replace(part, labels=(label[synset_of(part)],), split=split) for part in parts
    ]
