"""ImageNet-21k from the official archives: a tar for each synset.

https://image-net.org: `fall11_whole.tar` (21,841 tars in a tar) and `winter21_whole.tar.gz` (19,167
of them); or a folder with the inner tars.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vit_jax.data import synsets
from vit_jax.prepare.collection import Collection, Request
from vit_jax.prepare.readers import synset_tars

SPLITS = "test=25600,validation=25600,train=rest"
ORDERS = ("released", "archive")


def collection(request: Request) -> Collection:
    """UserError if the source is not that of ImageNet-21k."""
    known = synsets.names()
    found = synset_tars.listed(Path(request.source))
    ids = [synset_tars.synset(part) for part in found]
    order = list(known) if request.label_order == "released" else sorted(set(ids) & set(known))
    labels = {synset: number for number, synset in enumerate(order)}
    return Collection(
        name="imagenet21k",
        description="ImageNet-21k (https://image-net.org), images as published.",
        class_names=[known[synset] for synset in order],
        parts=synset_tars.labelled(found, labels),
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
