"""Writes report.json, report.html and the lists of images into the folder of a data set."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import Screen, format_bytes, format_duration, format_percent
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.draw import charts, html_page
from vit_jax.tools.prepare import faults, summary
from vit_jax.tools.prepare.collection import Collection
from vit_jax.tools.prepare.faults import ACTIONS
from vit_jax.tools.prepare.prepared_set import WrittenSet
from vit_jax.tools.prepare.split_assignment import SplitAssignment
from vit_jax.tools.prepare.summary import CopyPairs

JSON, PAGE = "report.json", "report.html"
SET_ASIDE, COPIES = "set_aside.jsonl", "copies.jsonl"
KEPT, LEFT_OUT, PAIRS = 48, 24, 24  # images on the page
LISTED = 200  # images on the page that were left out
NAMED = 10  # classes, in a sentence
SIDE = 144  # of a thumbnail: pixels of the longer side
TRIED = 200  # images, to get enough that can be shown


def write(
    data_set: WrittenSet,
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
    pairs = summary.copy_pairs(table, assignment)
    names = collection.class_names
    report = {**summary.summary(data_set, collection, policy, pairs), "made": made, **note}
    _write(folder / JSON, [json.dumps(report, indent=1) + "\n"])
    for name, entries, number in (
        (SET_ASIDE, summary.left_out(table, assignment), len(assignment.left_out)),
        (COPIES, summary.entries(table, assignment, names, pairs), len(pairs.copy)),
    ):
        # Bytes of a name that are not text become \udcXX.
        lines = (json.dumps(entry) + "\n" for entry in entries)
        _write(folder / name, _counted(lines, name, number, screen))
    first = list(itertools.islice(summary.left_out(table, assignment), LISTED))
    sheets = _sheets(table, assignment, collection, pairs, max_pixels)
    sentences = [*collection.notes, *findings(report)]
    _write(folder / PAGE, [page(report, sentences, sheets, first)])


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
    for at in itertools.islice(summary.to_show(pairs), TRIED):
        row, of = int(pairs.copy[at]), int(pairs.first[at])
        url, url_of = (thumbnail(table, one, max_pixels) for one in (row, of))
        if url and url_of:
            bad = bool(pairs.other_class[at])
            both = picture(of, url_of, bad=bad), picture(row, url, bad=bad)
            shown.append(Pair(*both, summary.in_words(pairs, at)))
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


MOST_NAMED = 2000  # classes without examples, on the page
SHOWN_CLASS_PAIRS = 40
COPY_KINDS = tuple(summary.KINDS.values())
_pixels, _with_unit = "{:,.0f}".format, "{:,.0f} pixels".format

SIZE, BOX = (330, 206), (50, 300, 10, 164)  # of a chart; on the right half a label
POINTS = 400  # of a curve

Bin = tuple[float, float, int]


class Picture(NamedTuple):
    """An image of a contact sheet: a data: URL, and its name and a note below it."""

    url: str
    name: str
    note: str
    bad: bool = False


class Pair(NamedTuple):
    """An image and its copy."""

    first: Picture
    copy: Picture
    note: str


class Sheets(NamedTuple):
    """Images to show."""

    kept: Sequence[Picture]
    left_out: Sequence[Picture]
    copies: Sequence[Pair]


def page(
    report: Mapping[str, Any], findings: Sequence[str], sheets: Sheets, left_out: Sequence[Mapping]
) -> str:
    """The text of the file, with the contents of report.json and report_files.findings.

    `left_out`: the first entries of summary.left_out.
    """
    images, classes, copies = report["images"], report["classes"], report["duplicates"]
    return html_page.render(
        "tools/prepare/report.html",
        title=f"{report['name']} {report['options']['version']}",
        subtitle=Markup('content <code title="{}">{}</code> · {}').format(
            report["content"], report["content"][:12], report["made"]
        ),
        tiles=_tiles(report),
        findings=findings,
        **_counts(report),
        charts=_charts(report),
        classes=classes,
        most=[[name, f"{number:,}"] for name, number in classes["most"]],
        fewest=[[name, f"{number:,}"] for name, number in classes["fewest"]],
        most_named=MOST_NAMED,
        sheets=sheets,
        copies=sum(copies[kind]["images"] for kind in COPY_KINDS),
        class_pairs=copies["class_pairs"],
        shared=[
            [" and ".join(one["classes"]), f"{one['copies']:,}"]
            + [f"{one.get(kind, 0):,}" for kind in COPY_KINDS]
            for one in copies["class_pairs"]["most"][:SHOWN_CLASS_PAIRS]
        ],
        images=images,
        left_out=[
            [one["name"], summary.reason_in_words(one["why"]), one["format"],
             f"{one['width']} × {one['height']}", one.get("of", "")]
            for one in left_out
        ],
        made_with=_made_with(report),
    )  # fmt: skip


def _tiles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    images, classes = report["images"], report["classes"]
    written = sum(split["bytes"] for split in report["splits"].values())
    return [
        (f"{images['listed']:,}", "images in the collection"),
        (f"{images['examples']:,}", "examples in the set"),
        (f"{images['left_out']:,}", "images left out"),
        (f"{classes['number'] - classes['empty']:,}", f"of {classes['number']:,} classes filled"),
        (format_bytes(written), f"of records, from {format_bytes(images['bytes_read'])} of images"),
        (format_duration(report["seconds"]), "taken by the last start"),
    ]


def _counts(report: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """The rows of four tables."""
    listed = max(report["images"]["listed"], 1)
    return {
        "splits": [
            [name, f"{s['examples']:,}", f"{report['classes']['in_splits'][name]:,}",
             f"{s['files']:,}", format_bytes(s["bytes"])]
            for name, s in report["splits"].items()
        ],
        "copies_left_out": [
            [summary.reason_in_words(reason), f"{number:,}", format_percent(number / listed)]
            for reason, number in report["left_out"].items()
            if reason not in report["faults"]
        ],
        "faults": [
            [f["what"], f"{f['images']:,}", *(f"{f['became'].get(a, 0):,}" for a in ACTIONS)]
            for f in report["faults"].values()
        ],
        "formats": [[name, f"{number:,}"] for name, number in report["formats"].items()],
    }  # fmt: skip


def _made_with(report: Mapping[str, Any]) -> list[list[Any]]:
    rows = [
        *([name, value] for name, value in report["options"].items()),
        *([f"version of {name}", value] for name, value in report["versions"].items()),
        *([f"evaluation set {name}", value] for name, value in report["evaluations"].items()),
    ]
    return [[name, "" if value in ("", [], ()) else value] for name, value in rows]


def _charts(report: Mapping[str, Any]) -> list[tuple[str, str, Markup]]:
    """Titles, notes and pictures; none of few classes, which a table has."""
    sides, nbytes = report["shorter_side"], report["file_bytes"]
    examples = report["classes"]["examples_of_each"]
    made = [
        bars("Shorter side", _middle(sides, _with_unit), sides["bins"], _pixels, "pixels"),
        bars("Size of a file", _middle(nbytes, format_bytes), nbytes["bins"], format_bytes),
    ]
    if len(examples) > 2 * summary.EXTREMES:
        made.append(curve("Examples of each class", "largest first", examples))
    return made


def _middle(spread: Mapping[str, Any], form: Any) -> str:
    """What is written over the bars: all values are one, or have this median."""
    if not spread["bins"]:
        return "none"
    one = spread["min"] == spread["max"]
    return f"{'all' if one else 'median'} {form(spread['median'])}"


@charts.styled
def bars(
    title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str], unit: str = ""
) -> tuple[str, str, Markup]:
    """A chart of numbers of images; `label` writes the edge of a bin without its unit."""
    axes = charts.blank(SIZE, BOX)
    highest = max([count for _, _, count in bins], default=0)
    charts.scale(axes.yaxis, 0, highest * 1.05 or 1, about=5, integer=True)
    beside = max(0, 3 - len(bins)) / 2  # a single bar stands in the middle, and does not fill all
    axes.set_xlim(-beside, len(bins) + beside)
    edges = [low for low, _, _ in bins[:1]] + [high for _, high, _ in bins]
    every = max(1, -(-len(bins) // 4))  # so that labels do not touch
    ticks = [*range(0, len(bins) - every + 1, every), len(bins)] if bins else []
    axes.set_xticks(ticks, [label(edges[i]) for i in ticks])
    hints = {}
    for i, (low, high, count) in enumerate(bins):
        (bar,) = axes.bar(i + 0.03, count, 0.94, align="edge", color=charts.RUNS[0])
        bar.set_gid(f"bin{i}")
        hint = f"{label(low)} to {label(high)}: {count:,} images"
        hints[f"bin{i}"] = (Markup('class="bar"'), hint)
    axes.set_xlabel(f"{title.lower()} ({unit})" if unit else title.lower())
    return title, f"images, {note}", charts.svg(axes, title, hints)


@charts.styled
def curve(title: str, note: str, values: Sequence[int]) -> tuple[str, str, Markup]:
    """A chart of numbers of examples, the largest first; zeros are on the axis."""
    values = sorted(values, reverse=True)
    filled = [value for value in values if value]
    log = bool(filled) and filled[0] / filled[-1] >= 30
    last = len(values) - 1
    axes = charts.blank(SIZE, BOX)
    low, high = charts.limits(filled or [1], start=None if log else 0, log=log)
    charts.scale(axes.yaxis, low, high, log=log, about=5, integer=True)
    charts.scale(axes.xaxis, 0, max(last, 1), integer=True)
    axes.set_xlabel("class")
    chosen = sorted({round(i * last / POINTS) for i in range(POINTS + 1)}) if values else []
    axes.plot(chosen, [values[i] or low for i in chosen], color=charts.RUNS[0], lw=1.8)
    return title, note + ", log scale" * log, charts.svg(axes, title)
