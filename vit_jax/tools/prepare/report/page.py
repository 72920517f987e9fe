"""report.html: a description of a data set on one page, without network or other files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from vit_jax.core.screen import format_bytes, format_duration
from vit_jax.draw import html_page, scales, svg
from vit_jax.draw.scales import Axes, Scale
from vit_jax.tools.prepare.faults import ACTIONS
from vit_jax.tools.prepare.report.summary import what

NAMED = 2000  # classes without examples, on the page
CLASS_PAIRS = 40
COPIES = ("same_bytes", "near", "mirrored")
_pixels = "{:,.0f}".format

# In the units of the picture, which are about CSS pixels.
SIZE = 420, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 412, 10, 172
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


def _charts(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
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


def bars(
    title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]
) -> tuple[str, str, str]:
    """A chart of counts; `label` writes the edge of a bin."""
    highest = max([count for _, _, count in bins], default=0)
    axes = _axes(Scale(0, max(len(bins), 1)), Scale(0, highest * 1.05 or 1))
    parts = _grid(axes)
    width = axes.x(1) - axes.x(0)
    every = max(1, -(-len(bins) // 6))
    for i, (low, high, count) in enumerate(bins):
        x, y = axes.x(i), axes.y(count)
        hint = f"{label(low)} to {label(high)}: {count:,} images"
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(width - 2, 0.5):.1f}" '
            f'height="{BOTTOM - y:.1f}"><title>{hint}</title></rect>'
        )
        if i % every == 0:
            parts.append(svg.label_below(axes, x, label(low)))
    return title, note, svg.picture(title, SIZE, axes, parts)


def curve(title: str, note: str, values: Sequence[int]) -> tuple[str, str, str]:
    """A chart of numbers of examples, the largest first; zeros are on the axis."""
    values = sorted(values, reverse=True)
    filled = [value for value in values if value]
    log = bool(filled) and filled[0] / filled[-1] >= 30
    last = len(values) - 1
    up = scales.fit(filled or [1], start=None if log else 0, end=None, log=log)
    axes = _axes(Scale(0, max(last, 1)), up)
    chosen = sorted({round(i * last / POINTS) for i in range(POINTS + 1)}) if values else []
    points = " ".join(
        f"{axes.x(i):.1f},{axes.y(values[i]) if values[i] else BOTTOM:.1f}" for i in chosen
    )
    parts = [
        *_grid(axes),
        *svg.values_below(axes, [tick for tick in axes.across.ticks(6) if tick == int(tick)]),
        f'<polyline class="curve" points="{points}"/>',
    ]
    return title, note + ", log scale" * log, svg.picture(title, SIZE, axes, parts)


def _axes(across: Scale, up: Scale) -> Axes:
    return Axes(across, up, LEFT, RIGHT, TOP, BOTTOM)


def _grid(axes: Axes) -> list[str]:
    """Lines at whole numbers."""
    return svg.grid(axes, [tick for tick in axes.up.ticks(5) if axes.up.log or tick == int(tick)])
