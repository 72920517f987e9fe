"""Writes report.json, report.html and the lists of images into the folder of a data set."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vit_jax.core.errors import reading
from vit_jax.core.files import atomic_file
from vit_jax.core.screen import format_bytes, format_duration, format_percent
from vit_jax.data.sources.tfds_writer import NOTE
from vit_jax.draw import charts, html_page
from vit_jax.tools.prepare import faults, summary
from vit_jax.tools.prepare.collection import Collection, rows_at
from vit_jax.tools.prepare.faults import ACTIONS
from vit_jax.tools.prepare.prepared_set import WrittenSet

JSON, PAGE = "report.json", "report.html"
SET_ASIDE, COPIES = "set_aside.jsonl", "copies.jsonl"
LISTED = 200  # images on the page that were left out, and copies
NAMED = 10  # classes, in a sentence


def write(
    data_set: WrittenSet, collection: Collection, policy: faults.Policy, note: Mapping[str, Any]
) -> None:
    table, assignment, folder = data_set.table, data_set.assignment, data_set.folder
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    pairs = summary.copy_pairs(table, assignment)
    report = {**summary.summary(data_set, collection, policy, pairs), "made": made, **note}
    _write(folder / JSON, [json.dumps(report, indent=1) + "\n"])
    for name, entries in (
        (SET_ASIDE, summary.left_out(table, assignment)),
        (COPIES, summary.entries(table, assignment, collection.class_names, pairs)),
    ):
        # Bytes of a name that are not text become \udcXX.
        _write(folder / name, (json.dumps(entry) + "\n" for entry in entries))
    first = list(itertools.islice(summary.left_out(table, assignment), LISTED))
    shown = summary.to_show(pairs)[:LISTED]
    sides = (rows_at(table, ["name"], side[shown]) for side in (pairs.copy, pairs.first))
    copies = [
        [copy["name"], first["name"], summary.in_words(pairs, at)]
        for copy, first, at in zip(*sides, shown, strict=True)
    ]
    sentences = [*collection.notes, *findings(report)]
    _write(folder / PAGE, [page(report, sentences, copies, first)])


def read(folder: Path) -> dict[str, Any]:
    cure = f"Move {folder / NOTE} away: the same command then makes the same bytes again."
    with reading(folder / JSON, cure=cure):
        return json.loads((folder / JSON).read_text())


def findings(report: Mapping[str, Any]) -> list[str]:
    copies, classes = report["duplicates"], report["classes"]
    sentences = []
    if classes["empty"]:
        empty = _few(classes["empty_names"], classes["empty"])
        sentences.append(f"Classes without examples: {empty}.")
    for split, number in classes["in_splits"].items():
        if missing := classes["number"] - classes["empty"] - number:
            few = _few(classes.get("only_elsewhere", {}).get(split, []), missing)
            sentences.append(f"Classes without examples in {split}, but in another split: {few}.")
    for kind, property in (
        ("same_bytes", "with the very bytes of one before them"),
        ("near", "that look like one before them"),
        ("mirrored", "that look like one before them in a mirror"),
    ):
        if (of := copies.get(kind)) and of["images"]:  # older reports lack some
            other = f"of these in another class: {of['of_other_classes']:,}"
            sentences.append(f"Images {property}: {of['images']:,}, {other}.")
    if across := copies["across_splits"]:
        sentences.append(f"Examples with such a copy in another split of the set: {across:,}.")
    for name, of in copies["in_evaluation"].items():
        also = f"Images of {name} that are also here: {of['images_of_it']:,}"
        sentences.append(f"{also}; left out as copies of them: {of['left_out']:,}.")
    for name, number in copies.get("mirrored_in_evaluation", {}).items():
        which = f"Images that look like one of {name} in a mirror, and are not left out"
        sentences.append(f"{which} (--mirrored_duplicates=drop): {number:,}.")
    if few := copies["not_compared"]:
        sentences.append(f"Looks that were not compared with all that are near: {few:,}.")
    return sentences


def _few(names: Sequence[str], number: int) -> str:
    """The number and the first names: "12 (ant, bee, ...)"."""
    more = " ..." if len(names) > NAMED else ""
    return f"{number:,}" + f" ({', '.join(names[:NAMED])}{more})" * bool(names)


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(lines)


MOST_NAMED = 2000  # classes without examples, on the page
SHOWN_CLASS_PAIRS = 40
COPY_KINDS = tuple(summary.KINDS.values())
_pixels = "{:,.0f} px".format

SIZE, BOX = (330, 206), (50, 300, 10, 164)  # of a chart; on the right half a label

Bin = tuple[float, float, int]


def page(
    report: Mapping[str, Any],
    findings: Sequence[str],
    copies: Sequence[Sequence[str]],
    left_out: Sequence[Mapping],
) -> str:
    images, classes, duplicates = report["images"], report["classes"], report["duplicates"]
    made_with = report["options"] | {
        f"{what} {name}": value
        for what, field in (("version of", "versions"), ("evaluation set", "evaluations"))
        for name, value in report[field].items()
    }
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
        copies=copies,
        num_copies=sum(duplicates[kind]["images"] for kind in COPY_KINDS),
        class_pairs=duplicates["class_pairs"],
        shared=[
            [" and ".join(one["classes"]), f"{one['copies']:,}"]
            + [f"{one.get(kind, 0):,}" for kind in COPY_KINDS]
            for one in duplicates["class_pairs"]["most"][:SHOWN_CLASS_PAIRS]
        ],
        images=images,
        left_out=[
            [one["name"], summary.reason_in_words(one["why"]), one["format"],
             f"{one['width']} × {one['height']}", one.get("of", "")]
            for one in left_out
        ],
        made_with=[[k, "" if v in ("", [], ()) else v] for k, v in made_with.items()],
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


def _charts(report: Mapping[str, Any]) -> list[tuple[str, str, Markup]]:
    sides, nbytes = report["shorter_side"], report["file_bytes"]
    examples = report["classes"]["examples_of_each"]
    made = [
        bars("Shorter side", _middle(sides, _pixels), sides["bins"], _pixels),
        bars("Size of a file", _middle(nbytes, format_bytes), nbytes["bins"], format_bytes),
    ]
    if len(examples) > 2 * summary.EXTREMES:
        made.append(curve("Examples of each class", "largest first", examples))
    return made


def _middle(spread: Mapping[str, Any], form: Any) -> str:
    if not spread["bins"]:
        return "none"
    one = spread["min"] == spread["max"]
    return f"{'all' if one else 'median'} {form(spread['median'])}"


@charts.styled
def bars(
    title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]
) -> tuple[str, str, Markup]:
    axes = charts.blank(SIZE, BOX)
    charts.scale(axes.yaxis, 0, 1.05 * max([n for *_, n in bins], default=1), about=5, integer=True)
    if bins:
        edges = [bins[0][0], *(high for _, high, _ in bins)]
        axes.stairs([n for *_, n in bins], edges, fill=True, color=charts.RUNS[0])
        charts.scale(axes.xaxis, edges[0], edges[-1], log=True)
        axes.set_xticks(edges[:: -(-len(edges) // 4)])  # few, so that labels do not touch
        axes.xaxis.set_major_formatter(lambda edge, _: label(edge))
    axes.set_xlabel(title.lower())
    return title, f"images, {note}", charts.svg(axes, title)


@charts.styled
def curve(title: str, note: str, values: Sequence[int]) -> tuple[str, str, Markup]:
    axes = charts.blank(SIZE, BOX)
    charts.scale(axes.yaxis, 0, max([*values, 1]), about=5, integer=True)
    charts.scale(axes.xaxis, 0, max(len(values) - 1, 1), integer=True)
    axes.set_xlabel("class")
    axes.plot(sorted(values, reverse=True), color=charts.RUNS[0], lw=1.8)
    return title, note, charts.svg(axes, title)
