"""Writes report.json, report.html and the lists of images into the folder of a data set."""

import datetime
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import Screen
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.draw import html_page
from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import Collection
from vit_jax.tools.prepare.prepared_set import PreparedSet
from vit_jax.tools.prepare.report import copy_pairs, page, summary
from vit_jax.tools.prepare.report.copy_pairs import CopyPairs
from vit_jax.tools.prepare.report.page import Pair, Picture, Sheets
from vit_jax.tools.prepare.split_assignment import SplitAssignment

JSON, PAGE = "report.json", "report.html"
SET_ASIDE, COPIES = "set_aside.jsonl", "copies.jsonl"
KEPT, LEFT_OUT, PAIRS = 48, 24, 24  # images on the page
LISTED = 200  # images on the page that were left out
CLASS_PAIRS = 1000  # in report.json
NAMED = 10  # classes, in a sentence
SIDE = 144  # of a thumbnail: pixels of the longer side
TRIED = 200  # images, to get enough that can be shown


def write(
    data_set: PreparedSet,
    collection: Collection,
    policy: faults.Policy,
    note: Mapping[str, Any],
    max_pixels: int,
    screen: Screen,
) -> None:
    """Writes the files, while the images of the collection are at the catalogue's locations.

    `note` has entries that prepared.json has, too; images of more than `max_pixels` are not shown.
    """
    table, assignment, folder = data_set.table, data_set.assignment, data_set.folder
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    pairs = copy_pairs.copy_pairs(table, assignment)
    names = collection.class_names
    report = {**summary.summary(data_set, collection, policy), "made": made, **note}
    report["duplicates"]["class_pairs"] = copy_pairs.class_pairs(table, names, pairs, CLASS_PAIRS)
    _write(folder / JSON, [json.dumps(report, indent=1) + "\n"])
    for name, entries, number in (
        (SET_ASIDE, summary.left_out(table, assignment), len(assignment.left_out)),
        (COPIES, copy_pairs.entries(table, assignment, names, pairs), len(pairs.copy)),
    ):
        # Bytes of a name that are not text become \udcXX.
        lines = (json.dumps(entry) + "\n" for entry in entries)
        _write(folder / name, _counted(lines, name, number, screen))
    first = list(itertools.islice(summary.left_out(table, assignment), LISTED))
    sheets = _sheets(table, assignment, collection, pairs, max_pixels)
    sentences = [*collection.notes, *findings(report)]
    _write(folder / PAGE, [page.page(report, sentences, sheets, first)])


def read(folder: Path) -> dict[str, Any]:
    """The contents of report.json. UserError if it is missing or damaged."""
    try:
        return json.loads((folder / JSON).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / JSON} is missing or damaged. Delete {folder / NOTE}: the same command then "
            "makes the data set again, the same bytes."
        ) from error


def findings(report: Mapping[str, Any]) -> list[str]:
    """Sentences about what to look at before anything is trained on the data set."""
    copies, classes = report["duplicates"], report["classes"]
    sentences = []
    if classes["empty"]:
        empty = _few(classes["empty_names"], classes["empty"])
        sentences.append(f"Classes without examples: {empty}.")
    for split, number in classes["in_splits"].items():
        if missing := classes["number"] - classes["empty"] - number:
            names = classes.get("only_elsewhere", {}).get(split, [])  # older reports have none
            few = _few(names, missing)
            sentences.append(f"Classes without examples in {split}, but in another split: {few}.")
    none = {"images": 0}  # of mirrored copies in older reports
    for kind, property in (
        ("same_bytes", "with the very bytes of one before them"),
        ("near", "that look like one before them"),
        ("mirrored", "that look like one before them in a mirror"),
    ):
        if number := (of := copies.get(kind, none))["images"]:
            sentences.append(
                f"Images {property}: {number:,}, of these in another class: "
                f"{of['of_other_classes']:,}."
            )
    if across := copies["across_splits"]:
        sentences.append(f"Examples with such a copy in another split of the set: {across:,}.")
    for name, of in copies["in_evaluation"].items():
        sentences.append(
            f"Images of {name} that are also here: {of['images_of_it']:,}; left out as copies of "
            f"them: {of['left_out']:,}."
        )
    for name, number in copies.get("mirrored_in_evaluation", {}).items():
        sentences.append(
            f"Images that look like one of {name} in a mirror, and are not left out "
            f"(--mirrored_duplicates=drop): {number:,}."
        )
    if copies["not_compared"]:
        sentences.append(
            f"{copies['not_compared']:,} looks resemble so many others that not all of these were "
            "compared: near duplicates among them may be missing."
        )
    return sentences


def _counted(lines: Iterable[str], name: str, number: int, screen: Screen) -> Iterable[str]:
    """The lines, `number` of them, with a bar of the progress."""
    for done, line in enumerate(lines):
        if done % 1000 == 0:
            screen.bar(f"listing {name}", done, number)
        yield line
    screen.bar(f"listing {name}", number, number)


def _few(names: Sequence[str], number: int) -> str:
    """The number and the first names: "12 (ant, bee, ...)"."""
    more = " ..." if len(names) > NAMED else ""
    return f"{number:,}" + f" ({', '.join(names[:NAMED])}{more})" * bool(names)


def _sheets(
    table: pa.Table,
    assignment: SplitAssignment,
    collection: Collection,
    pairs: CopyPairs,
    max_pixels: int,
) -> Sheets:
    largest = max(assignment.splits.values(), key=len, default=np.zeros(0, np.int64))

    def labels(row: int) -> str:
        of_row = assignment.labels.get(row) or table["labels"][row].as_py()
        return ", ".join(collection.class_names[label] for label in of_row)

    def picture(row: int, url: str, note: str = "", *, bad: bool = False) -> Picture:
        return Picture(url, table["name"][row].as_py(), note or labels(row), bad)

    def some(rows: Iterable[int], number: int) -> list[tuple[int, str]]:
        """(row, URL) of the first images that can be shown."""
        tried = ((row, thumbnail(table, row, max_pixels)) for row in itertools.islice(rows, TRIED))
        return list(itertools.islice(((row, url) for row, url in tried if url), number))

    left_out = some(mixed(table, assignment.left_out), LEFT_OUT)
    shown = []
    for at in itertools.islice(copy_pairs.to_show(pairs), TRIED):
        row, of = int(pairs.copy[at]), int(pairs.first[at])
        url, url_of = (thumbnail(table, one, max_pixels) for one in (row, of))
        if url and url_of:
            bad = bool(pairs.other_class[at])
            both = picture(of, url_of, bad=bad), picture(row, url, bad=bad)
            shown.append(Pair(*both, copy_pairs.in_words(pairs, at)))
        if len(shown) == PAIRS:
            break
    return Sheets(
        [picture(row, url) for row, url in some(map(int, largest), KEPT)],
        [picture(row, url, assignment.left_out[row], bad=True) for row, url in left_out],
        shown,
    )


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def thumbnail(table: pa.Table, row: int, max_pixels: int) -> str | None:
    """A data: URL; None if the image cannot be read or decoded, not even in part."""
    columns = ["path", "offset", "nbytes", "height", "width"]
    one = {name: table[name][row].as_py() for name in columns}
    if not one["path"] or not 0 < one["height"] * one["width"] <= max_pixels:
        return None
    try:
        with open(one["path"], "rb") as file:
            file.seek(one["offset"])
            return html_page.thumbnail_url(file.read(one["nbytes"]), SIDE)
    except OSError:
        return None


def mixed(table: pa.Table, reasons: dict[int, str]) -> Iterator[int]:
    """The rows, the reasons in turn; within a reason in the order of the data set."""
    order = table["order"].to_numpy()
    groups: dict[str, list[int]] = {}
    for row, why in reasons.items():
        groups.setdefault(why, []).append(row)
    ordered = [
        np.asarray(rows)[np.argsort(order[rows], kind="stable")]
        for _, rows in sorted(groups.items())
    ]
    for turn in itertools.zip_longest(*ordered):
        yield from (int(row) for row in turn if row is not None)
