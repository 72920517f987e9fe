"""ImageNet-21k from the official archives: a tar for each synset.

https://image-net.org: `fall11_whole.tar` (21,841 tars in a tar) and `winter21_whole.tar.gz` (19,167
of them); or a folder with the inner tars.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vit_jax.core.errors import UserError
from vit_jax.preparing import synsets, tars
from vit_jax.preparing.collection import Collection, Request
from vit_jax.preparing.entry import Part

SPLITS = "test=25600,validation=25600,train=rest"
ORDERS = ("released", "archive")
_SYNSET = re.compile(r"(n\d{8})\.tar")


def collection(request: Request) -> Collection:
    """UserError if the source is not that of ImageNet-21k."""
    parts = _parts(Path(request.source))
    known = synsets.names()
    ids = [part.name.removesuffix(".tar") for part in parts]
    unknown = sorted(set(ids) - set(known))
    if unknown:
        raise UserError(
            f"{request.source} has synsets that are not in ImageNet-21k: "
            f"{', '.join(unknown[:5])} ({len(unknown)} of {len(ids)})."
        )
    order = list(known) if request.label_order == "released" else sorted(ids)
    label = {synset: number for number, synset in enumerate(order)}
    return Collection(
        name="imagenet21k",
        description="ImageNet-21k (https://image-net.org), images as published.",
        class_names=[known[synset] for synset in order],
        parts=[
            Part(p.name, p.reader, p.path, p.offset, p.nbytes, labels=(label[synset],))
            for p, synset in zip(parts, ids, strict=True)
        ],
        splits=SPLITS,
        notes=[release(ids)],
    )


def release(ids: Sequence[str]) -> str:
    """Which of the archives has these synsets, in a sentence."""
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


def _parts(source: Path) -> list[Part]:
    """A tar each, sorted."""
    if source.is_dir():
        found = [Part(path.name, "tar", str(path)) for path in source.glob("*.tar")]
    elif source.is_file():
        found = [
            Part(PurePosixPath(info.name).name, "tar", str(source), info.offset_data, info.size)
            for info, fault, _ in tars.entries(Part(source.name, "tar", str(source)))
            if not fault or fault == "too_large"  # a tar may be
        ]
    else:
        raise UserError(f"--source={source}: no such file or folder.")
    parts = sorted((p for p in found if _SYNSET.fullmatch(p.name)), key=lambda part: part.name)
    names = [part.name for part in parts]
    if not parts:
        raise UserError(
            f"--source={source} holds no tars named as synsets (n01440764.tar ...): neither the "
            "archive of ImageNet-21k, nor a folder of the tars in it."
        )
    if (
        twice := sorted({name for name in names if names.count(name) > 1})
        if len(set(names)) < len(names)
        else []
    ):
        raise UserError(f"--source={source} holds {', '.join(twice[:5])} twice.")
    return parts
