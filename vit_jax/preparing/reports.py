"""Writes report.json, report.html and set_aside.jsonl into the folder of a data set."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError
from vit_jax.core.whole_file import whole_file
from vit_jax.data.tfds_writer import NOTE
from vit_jax.preparing import faults, report_page, summary, thumbnails
from vit_jax.preparing.arrangement import Arrangement
from vit_jax.preparing.collection import Collection
from vit_jax.preparing.prepared import Prepared
from vit_jax.preparing.report_page import Picture, Sheets

JSON, PAGE, SET_ASIDE = "report.json", "report.html", "set_aside.jsonl"
KEPT, LEFT_OUT, NEAR = 48, 24, 12  # images on the page
LISTED = 200  # images that were left out


def write(
    found: Prepared,
    collection: Collection,
    policy: faults.Policy,
    about: Mapping[str, Any],
    max_pixels: int,
) -> None:
    """Writes the files, while the images of the collection are where the catalogue says.

    Args:
      about: what prepared.json says besides.
      max_pixels: larger images are not shown.
    """
    table, arranged = found.table, found.arrangement
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    said = {**summary.summary(found, collection, policy), "made": made, **about}
    _write(found.folder / JSON, [json.dumps(said, indent=1) + "\n"])
    _write(found.folder / SET_ASIDE, summary.lines(summary.left_out(table, arranged)))
    first = list(itertools.islice(summary.left_out(table, arranged), LISTED))
    sheets = _sheets(table, arranged, collection, max_pixels)
    sentences = [*collection.notes, *looks(said)]
    _write(found.folder / PAGE, [report_page.page(said, sentences, sheets, first)])


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
        names = ", ".join(name.split(" ")[0] for name in classes["empty_names"][:3])
        found.append(f"Classes without examples: {classes['empty']:,}, first {names}.")
    for name, number in classes["in_splits"].items():
        if missing := classes["number"] - classes["empty"] - number:
            found.append(f"Classes without examples in {name}, but in another split: {missing:,}.")
    for what, of in (("with the very bytes of", same), ("that look like", near)):
        if of["images"]:
            found.append(
                f"Images {what} one before them: {of['images']:,}, "
                f"of these in another class: {of['of_other_classes']:,}."
            )
    if across := copies["across_splits"]:
        found.append(f"Examples with such a copy in another split of the set: {across:,}.")
    for name, of in copies["in_evaluation"].items():
        found.append(
            f"Images of {name} that are also here: {of['images_of_it']:,}; left out as copies of "
            f"them: {of['left_out']:,}."
        )
    if copies["not_compared"]:
        found.append(
            f"{copies['not_compared']:,} looks resemble so many others that not all of these were "
            "compared: near duplicates among them may be missing."
        )
    return found


def _sheets(
    table: pa.Table, arranged: Arrangement, collection: Collection, max_pixels: int
) -> Sheets:
    largest = max(arranged.splits.values(), key=len, default=np.zeros(0, np.int64))
    near = arranged.copies.near

    def labels(row: int) -> str:
        found = arranged.labels.get(row) or table["labels"][row].as_py()
        return ", ".join(collection.class_names[label] for label in found)

    def picture(row: int, url: str, note: str = "", *, bad: bool = False) -> Picture:
        return Picture(url, table["name"][row].as_py(), note or labels(row), bad)

    def some(rows: Iterable[int], number: int) -> list[tuple[int, str]]:
        return list(thumbnails.some(table, rows, number, max_pixels))

    left_out = some(thumbnails.mixed(table, arranged.left_out), LEFT_OUT)
    pairs = []
    for row, url in some(thumbnails.mixed(table, dict.fromkeys(near, "near")), NEAR):
        if first := thumbnails.of_row(table, near[row], max_pixels):
            other = picture(row, url, bad=labels(row) != labels(near[row]))
            pairs.append((picture(near[row], first), other))
    return Sheets(
        [picture(row, url) for row, url in some(map(int, largest), KEPT)],
        [picture(row, url, arranged.left_out[row], bad=True) for row, url in left_out],
        pairs,
    )


def _write(path: Path, lines: Iterable[str]) -> None:
    with whole_file(path) as written, written.open("w", encoding="utf-8") as file:
        file.writelines(lines)
