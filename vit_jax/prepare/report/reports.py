"""Writes report.json, report.html and its lists into the folder of a data set."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError
from vit_jax.core.files.atomic import atomic_file
from vit_jax.core.screen import Screen
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.prepare import faults
from vit_jax.prepare.arrangement import Arrangement
from vit_jax.prepare.collection import Collection
from vit_jax.prepare.copies import copy_pairs
from vit_jax.prepare.copies.copy_pairs import CopyPairs
from vit_jax.prepare.prepared import Prepared
from vit_jax.prepare.report import page, summary, thumbnails
from vit_jax.prepare.report.page import Pair, Picture, Sheets

JSON, PAGE = "report.json", "report.html"
SET_ASIDE, COPIES = "set_aside.jsonl", "copies.jsonl"
KEPT, LEFT_OUT, PAIRS = 48, 24, 24  # images on the page
LISTED = 200  # images that were left out
CLASS_PAIRS = 1000  # in report.json
NAMED = 10  # classes, in a sentence


def write(
    found: Prepared,
    collection: Collection,
    policy: faults.Policy,
    about: Mapping[str, Any],
    max_pixels: int,
    screen: Screen,
) -> None:
    """Writes the files, while the images of the collection are where the catalogue says.

    Args:
      about: what prepared.json says besides.
      max_pixels: larger images are not shown.
      screen: where long lists tell how far they are.
    """
    table, arranged = found.table, found.arrangement
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    pairs = copy_pairs.copy_pairs(table, arranged)
    names = collection.class_names
    said = {**summary.summary(found, collection, policy), "made": made, **about}
    said["duplicates"]["class_pairs"] = copy_pairs.class_pairs(table, names, pairs, CLASS_PAIRS)
    _write(found.folder / JSON, [json.dumps(said, indent=1) + "\n"])
    left_out = summary.lines(summary.left_out(table, arranged))
    copies = summary.lines(copy_pairs.told(table, arranged, names, pairs))
    for name, lines, number in (
        (SET_ASIDE, left_out, len(arranged.left_out)),
        (COPIES, copies, len(pairs.copy)),
    ):
        _write(found.folder / name, _counted(lines, name, number, screen))
    first = list(itertools.islice(summary.left_out(table, arranged), LISTED))
    sheets = _sheets(table, arranged, collection, pairs, max_pixels)
    sentences = [*collection.notes, *looks(said)]
    _write(found.folder / PAGE, [page.page(said, sentences, sheets, first)])


def read(folder: Path) -> dict[str, Any]:
    """What report.json says. UserError if it is not there any more."""
    try:
        return json.loads((folder / JSON).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / JSON} is missing or damaged. Delete {folder / NOTE}: the same command then "
            "makes the data set again, the same bytes."
        ) from error


def looks(said: Mapping[str, Any]) -> list[str]:
    """Sentences about what should be looked at before anything is trained on the set."""
    copies, classes = said["duplicates"], said["classes"]
    same, near = copies["same_bytes"], copies["near"]
    found = []
    if classes["empty"]:
        found.append(f"Classes without examples: {_few(classes['empty_names'], classes['empty'])}.")
    for name, number in classes["in_splits"].items():
        if missing := classes["number"] - classes["empty"] - number:
            names = classes.get("only_elsewhere", {}).get(name, [])  # none in reports of before
            found.append(
                f"Classes without examples in {name}, but in another split: {_few(names, missing)}."
            )
    for what, of in (
        ("with the very bytes of one before them", same),
        ("that look like one before them", near),
        ("that look like one before them in a mirror", copies.get("mirrored", {"images": 0})),
    ):
        if of["images"]:
            found.append(
                f"Images {what}: {of['images']:,}, "
                f"of these in another class: {of['of_other_classes']:,}."
            )
    if across := copies["across_splits"]:
        found.append(f"Examples with such a copy in another split of the set: {across:,}.")
    for name, of in copies["in_evaluation"].items():
        found.append(
            f"Images of {name} that are also here: {of['images_of_it']:,}; left out as copies of "
            f"them: {of['left_out']:,}."
        )
    for name, number in copies.get("mirrored_in_evaluation", {}).items():
        found.append(
            f"Images that look like one of {name} in a mirror, and are not left out "
            f"(--mirrored_duplicates=drop): {number:,}."
        )
    if copies["not_compared"]:
        found.append(
            f"{copies['not_compared']:,} looks resemble so many others that not all of these were "
            "compared: near duplicates among them may be missing."
        )
    return found


def _counted(lines: Iterable[str], name: str, number: int, screen: Screen) -> Iterable[str]:
    """The lines, of which there are so many; says how far it is."""
    for done, line in enumerate(lines):
        if done % 1000 == 0:
            screen.bar(f"listing {name}", done, number)
        yield line
    screen.bar(f"listing {name}", number, number)


def _few(names: Sequence[str], number: int) -> str:
    """Their number and the first of them."""
    more = " ..." if len(names) > NAMED else ""
    return f"{number:,}" + f" ({', '.join(names[:NAMED])}{more})" * bool(names)


def _sheets(
    table: pa.Table,
    arranged: Arrangement,
    collection: Collection,
    pairs: CopyPairs,
    max_pixels: int,
) -> Sheets:
    largest = max(arranged.splits.values(), key=len, default=np.zeros(0, np.int64))

    def labels(row: int) -> str:
        found = arranged.labels.get(row) or table["labels"][row].as_py()
        return ", ".join(collection.class_names[label] for label in found)

    def picture(row: int, url: str, note: str = "", *, bad: bool = False) -> Picture:
        return Picture(url, table["name"][row].as_py(), note or labels(row), bad)

    def some(rows: Iterable[int], number: int) -> list[tuple[int, str]]:
        return list(thumbnails.some(table, rows, number, max_pixels))

    left_out = some(thumbnails.mixed(table, arranged.left_out), LEFT_OUT)
    shown = []
    for at in itertools.islice(copy_pairs.to_show(pairs), thumbnails.MOST_TRIED):
        row, of = int(pairs.copy[at]), int(pairs.first[at])
        url, url_of = (thumbnails.of_row(table, one, max_pixels) for one in (row, of))
        if url and url_of:
            bad = bool(pairs.other_class[at])
            both = picture(of, url_of, bad=bad), picture(row, url, bad=bad)
            shown.append(Pair(*both, copy_pairs.in_words(pairs, at)))
        if len(shown) == PAIRS:
            break
    return Sheets(
        [picture(row, url) for row, url in some(map(int, largest), KEPT)],
        [picture(row, url, arranged.left_out[row], bad=True) for row, url in left_out],
        shown,
    )


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_file(path) as written, written.open("w", encoding="utf-8") as file:
        file.writelines(lines)
