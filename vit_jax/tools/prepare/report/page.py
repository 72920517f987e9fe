"""report.html: a description of a data set on one page, without network or other files."""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.core.screen import format_bytes, format_duration
from vit_jax.draw import html_page, scales, svg
from vit_jax.draw.scales import Axes, Scale
from vit_jax.tools.prepare.faults import ACTIONS
from vit_jax.tools.prepare.report.summary import what

NAMED = 2000  # classes without examples, on the page
CLASS_PAIRS = 40
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
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    body = [
        f"<main>{_tiles(report)}",
        _findings(findings),
        _counts(report),
        _charts(report),
        _classes(report["classes"]),
        _sheet("A sample of the examples", sheets.kept),
        _pairs(sheets.copies, report["duplicates"]),
        _class_pairs(report["duplicates"]["class_pairs"]),
        _sheet("A sample of what was left out", sheets.left_out),
        _left_out(left_out, report["images"]["left_out"]),
        f"{_made_with(report)}\n</main>",
    ]
    return html_page.document(
        escape(f"{report['name']} {report['options']['version']}"),
        body,
        program="prepare",
        subtitle=f"content <code>{report['content']}</code> · {escape(report['made'])}",
        css=f"\n{css}",
        policy="img-src data:",
    )


def escape(text: object) -> str:
    """Escapes a text for HTML; bytes of a name that are not text become \\xXX."""
    data = str(text).encode("utf-8", "surrogateescape")
    return html.escape(data.decode("utf-8", "backslashreplace"))


def _tiles(report: Mapping[str, Any]) -> str:
    images, classes = report["images"], report["classes"]
    written = sum(split["bytes"] for split in report["splits"].values())
    tiles = [
        (f"{images['listed']:,}", "images in the collection"),
        (f"{images['examples']:,}", "examples in the set"),
        (f"{images['left_out']:,}", "images left out"),
        (f"{classes['number'] - classes['empty']:,}", f"of {classes['number']:,} classes filled"),
        (format_bytes(written), f"of records, from {format_bytes(images['bytes_read'])} of images"),
        (format_duration(report["seconds"]), "taken by the last start"),
    ]
    cells = "".join(f"<div><b>{value}</b><span>{text}</span></div>" for value, text in tiles)
    return f'<div class="tiles">{cells}</div>'


def _findings(sentences: Sequence[str]) -> str:
    if not sentences:
        return '<ul class="look fine"><li>Nothing that would have to be looked at.</li></ul>'
    return f'<ul class="look">{"".join(f"<li>{escape(one)}</li>" for one in sentences)}</ul>'


def _counts(report: Mapping[str, Any]) -> str:
    listed = max(report["images"]["listed"], 1)
    splits = [
        [name, f"{s['examples']:,}", f"{report['classes']['in_splits'][name]:,}", f"{s['files']:,}",
         format_bytes(s["bytes"])]
        for name, s in report["splits"].items()
    ]  # fmt: skip
    why = [
        [what(reason), f"{number:,}", f"{number / listed:.3%}"]
        for reason, number in report["left_out"].items()
    ]
    fault_rows = [
        [f["what"], f"{f['images']:,}", *(f"{f['became'].get(a, 0):,}" for a in ACTIONS)]
        for f in report["faults"].values()
    ]
    formats = [[name, f"{number:,}"] for name, number in report["formats"].items()]
    return (
        '<h2>Counts</h2><div class="tables">'
        + _titled("Splits", ["split", "examples", "classes", "files", "size"], splits)
        + _titled("Left out", ["why", "images", "of all"], why)
        + _titled(
            "What was found", ["what", "images", "kept", "converted", "set aside"], fault_rows
        )
        + _titled("Formats", ["format", "images"], formats)
        + "</div>"
    )


def _charts(report: Mapping[str, Any]) -> str:
    sides, nbytes = report["shorter_side"], report["file_bytes"]
    classes = report["classes"]
    pictures = [
        bars("Shorter side", f"pixels, {_middle(sides, _pixels)}", sides["bins"], _pixels),
        bars("Size of a file", _middle(nbytes, format_bytes), nbytes["bins"], format_bytes),
        curve("Examples of each class", "largest first", classes["examples_of_each"]),
    ]
    return f'<h2>Images and classes</h2><div class="panels">\n{"".join(pictures)}\n</div>'


def _middle(spread: Mapping[str, Any], form: Any) -> str:
    return f"median {form(spread['median'])}" if spread["bins"] else "none"


def _classes(classes: Mapping[str, Any]) -> str:
    extremes = [
        _titled(title, ["class", "examples"], [[name, f"{n:,}"] for name, n in classes[key]])
        for key, title in (("most", "Most examples"), ("fewest", "Fewest examples"))
        if classes[key]
    ]
    empty = _names("Classes without examples", classes["empty_names"])
    for split, names in classes["only_elsewhere"].items():
        empty += _names(f"Classes without examples in {split}, but in another split", names)
    return f'<div class="tables">{"".join(extremes)}</div>{empty}'


def _names(title: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = len(names) - NAMED
    rest = f"<p>and {more:,} more, which report.json has</p>" * (more > 0)
    return (
        f"<details><summary>{escape(title)}: {len(names):,}</summary>"
        f'<ul class="names">{"".join(f"<li>{escape(name)}</li>" for name in names[:NAMED])}</ul>'
        f"{rest}</details>"
    )


def _sheet(title: str, pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    return f'<h2>{title}</h2><div class="sheet">\n{html_page.lines(map(_figure, pictures))}\n</div>'


def _pairs(pairs: Sequence[Pair], copies: Mapping[str, Any]) -> str:
    if not pairs:
        return ""
    number = sum(copies[kind]["images"] for kind in ("same_bytes", "near", "mirrored"))
    cells = [
        f'<div class="pair">{_figure(pair.first)}{_figure(pair.copy)}'
        f"<p>{escape(pair.note)}</p></div>"
        for pair in pairs
    ]
    shown = (
        f"{len(cells)} of {number:,}; copies.jsonl has all. Of other classes (red) first, then of "
        "other splits; on the left the one that was first"
    )
    return (
        f'<h2>Copies <span class="note">{shown}</span></h2>'
        f'<div class="pairs">\n{html_page.lines(cells)}\n</div>'
    )


def _class_pairs(pairs: Mapping[str, Any]) -> str:
    """Classes that have copies of each other's images."""
    if not pairs["number"]:
        return ""
    shown = pairs["most"][:CLASS_PAIRS]
    kinds = ("same_bytes", "near", "mirrored")
    rows = [
        [" and ".join(one["classes"]), f"{one['copies']:,}", *(f"{one.get(k, 0):,}" for k in kinds)]
        for one in shown
    ]
    note = f"{len(shown):,} of {pairs['number']:,} pairs of classes"
    note += "; report.json has more" * (pairs["number"] > len(shown))
    head = ["classes", "copies", "same bytes", "near", "mirrored"]
    return (
        f'<h2>Classes that share images <span class="note">{note}</span></h2>{_table(head, rows)}'
    )


def _figure(picture: Picture) -> str:
    name, tag = escape(picture.name), "em" if picture.bad else "code"
    return (
        f'<figure title="{name}"><img alt="{name}" src="{picture.url}">'
        f"<figcaption><span>{name}</span><{tag}>{escape(picture.note)}</{tag}></figcaption></figure>"
    )


def _left_out(rows: Sequence[Mapping[str, Any]], number: int) -> str:
    if not rows:
        return ""
    cells = [
        [one["name"], what(one["why"]), one["format"], f"{one['width']} × {one['height']}",
         one.get("of", "")]
        for one in rows
    ]  # fmt: skip
    head = ["name", "why", "format", "size", "copy of"]
    return (
        f"<details><summary>The first {len(rows):,} of {number:,} images that were left out; "
        f"set_aside.jsonl has all</summary>{_table(head, cells, numbers=False)}</details>"
    )


def _made_with(report: Mapping[str, Any]) -> str:
    rows = [
        *([name, value] for name, value in report["options"].items()),
        *([f"version of {name}", value] for name, value in report["versions"].items()),
        *([f"evaluation set {name}", value] for name, value in report["evaluations"].items()),
    ]
    cells = [[name, "" if value in ("", [], ()) else value] for name, value in rows]
    table = _table(["", ""], cells, numbers=False)
    return f"<details><summary>Options and versions</summary>{table}</details>"


def _titled(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    return f"<section><h3>{title}</h3>{_table(head, rows)}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: bool = True) -> str:
    """A table; with `numbers`, all columns but the first are numbers."""
    of = lambda i: ' class="number"' if numbers and i else ""
    heads = "".join(f"<th{of(i)}>{escape(title)}</th>" for i, title in enumerate(head))
    body = html_page.lines(
        "<tr>" + "".join(f"<td{of(i)}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody>'
        "</table></div>"
    )


def bars(title: str, note: str, bins: Sequence[Bin], label: Callable[[float], str]) -> str:
    """A <figure> of counts; `label` writes the edge of a bin."""
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
            f'height="{BOTTOM - y:.1f}"><title>{escape(hint)}</title></rect>'
        )
        if i % every == 0:
            parts.append(svg.label_below(axes, x, label(low)))
    return _panel(title, note, svg.picture(title, SIZE, axes, parts))


def curve(title: str, note: str, values: Sequence[int]) -> str:
    """A <figure> of numbers of examples, the largest first; zeros are on the axis."""
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
    return _panel(
        title, note + (", log scale" if log else ""), svg.picture(title, SIZE, axes, parts)
    )


def _axes(across: Scale, up: Scale) -> Axes:
    return Axes(across, up, LEFT, RIGHT, TOP, BOTTOM)


def _grid(axes: Axes) -> list[str]:
    """Lines at whole numbers."""
    return svg.grid(axes, [tick for tick in axes.up.ticks(5) if axes.up.log or tick == int(tick)])


def _panel(title: str, note: str, picture: str) -> str:
    return (
        f'<figure><figcaption><b>{escape(title)}</b><span class="note">{escape(note)}</span>'
        f"</figcaption>\n{picture}</figure>"
    )
