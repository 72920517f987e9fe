"""report.html: a description of a data set on one page, without network or other files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from vit_jax.core.screen import format_bytes, format_duration
from vit_jax.draw import charts, html_page
from vit_jax.tools.prepare.faults import ACTIONS
from vit_jax.tools.prepare.report.summary import what

NAMED = 2000  # classes without examples, on the page
CLASS_PAIRS = 40
COPIES = ("same_bytes", "near", "mirrored")
_pixels = "{:,.0f}".format

SIZE, BOX = (420, 196), (46, 412, 10, 172)  # of a chart
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
        "tools/prepare/report/page.html",
        title=f"{report['name']} {report['options']['version']}",
        subtitle=Markup("content <code>{}</code> · {}").format(report["content"], report["made"]),
        tiles=_tiles(report),
        findings=findings,
        **_counts(report),
        charts=_charts(report),
        classes=classes,
        most=[[name, f"{number:,}"] for name, number in classes["most"]],
        fewest=[[name, f"{number:,}"] for name, number in classes["fewest"]],
        most_named=NAMED,
        sheets=sheets,
        copies=sum(copies[kind]["images"] for kind in COPIES),
        class_pairs=copies["class_pairs"],
        shared=[
            [" and ".join(one["classes"]), f"{one['copies']:,}"]
            + [f"{one.get(kind, 0):,}" for kind in COPIES]
            for one in copies["class_pairs"]["most"][:CLASS_PAIRS]
        ],
        images=images,
        left_out=[
            [one["name"], what(one["why"]), one["format"], f"{one['width']} × {one['height']}",
             one.get("of", "")]
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
        "reasons": [
            [what(reason), f"{number:,}", f"{number / listed:.3%}"]
            for reason, number in report["left_out"].items()
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
    """Titles, notes and pictures."""
    sides, nbytes = report["shorter_side"], report["file_bytes"]
    examples = report["classes"]["examples_of_each"]
    return [
        bars("Shorter side", f"pixels, {_middle(sides, _pixels)}", sides["bins"], _pixels),
        bars("Size of a file", _middle(nbytes, format_bytes), nbytes["bins"], format_bytes),
        curve("Examples of each class", "largest first", examples),
    ]


def _middle(spread: Mapping[str, Any], form: Any) -> str:
    return f"median {form(spread['median'])}" if spread["bins"] else "none"


@charts.styled
def bars(
    title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]
) -> tuple[str, str, Markup]:
    """A chart of counts; `label` writes the edge of a bin."""
    axes = charts.blank(SIZE, BOX)
    highest = max([count for _, _, count in bins], default=0)
    charts.scale(axes.yaxis, 0, highest * 1.05 or 1, about=5, integer=True)
    axes.set_xlim(0, max(len(bins), 1))
    every = max(1, -(-len(bins) // 6))
    axes.set_xticks(range(0, len(bins), every), [label(low) for low, _, _ in bins[::every]])
    hints = {}
    for i, (low, high, count) in enumerate(bins):
        (bar,) = axes.bar(i + 0.03, count, 0.94, align="edge", color=charts.RUNS[0])
        bar.set_gid(f"bin{i}")
        hint = f"{label(low)} to {label(high)}: {count:,} images"
        hints[f"bin{i}"] = (Markup('class="bar"'), hint)
    return title, note, charts.svg(axes, title, hints)


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
    chosen = sorted({round(i * last / POINTS) for i in range(POINTS + 1)}) if values else []
    axes.plot(chosen, [values[i] or low for i in chosen], color=charts.RUNS[0], lw=1.8)
    return title, note + ", log scale" * log, charts.svg(axes, title)
