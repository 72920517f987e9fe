"""The page: panels, pictures, and tables of final numbers and of fields that differ."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from etils import epath
from markupsafe import Markup

from vit_jax.core.metric_names import readable, words
from vit_jax.core.screen import format_percent
from vit_jax.draw import charts, html_page
from vit_jax.draw.html_page import Picture, bold, code
from vit_jax.store.runs import Run, Series
from vit_jax.store.workdir import PICTURES
from vit_jax.tools.look.report import panels
from vit_jax.tools.look.report.panels import Panel


def page(runs: Sequence[Run], made_at: datetime) -> str:
    """The text of the file; `runs` have at least one row among them."""
    last_step = max(run.last_step for run in runs)
    arranged = panels.arrange(runs)
    sections = {
        name: [panels.draw(panel, last_step, len(runs)) for panel in shown]
        for name, shown in arranged.items()
    }
    numbers = max(len(runs), panels.MOST_TOGETHER)
    where = f"{runs[0].folder} · " if len(runs) == 1 else ""
    return html_page.render(
        "tools/look/report/page.html",
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        subtitle=f"{where}up to step {last_step:,} · {made_at:%Y-%m-%d %H:%M %Z}",
        runs=runs,
        looks=[(i % len(charts.RUNS), charts.dashes(i)) for i in range(numbers)],
        swatch=swatch,
        summary=summary(runs),
        sections=sections,
        drawn=_drawn(runs),
        notes=_notes(arranged, panels.left_out(runs)),
        differences=differences(runs),
        same=same_fields(runs),
    )


def _drawn(runs: Sequence[Run]) -> list[tuple[str, str, int, list[Picture]]]:
    """Titles, folders, numbers of steps and first and last pictures of the runs' evaluations."""
    drawn = []
    for run in runs:
        files: dict[epath.Path, dict[int, epath.Path]] = {}
        for file in (run.folder / PICTURES).glob("*/*/*.png"):
            if file.stem.isdecimal():
                files.setdefault(file.parent, {})[int(file.stem)] = file
        for folder in sorted(files):
            name, steps = "/".join(folder.parts[-2:]), sorted(files[folder])
            ends = [(step, files[folder][step]) for step in sorted({steps[0], steps[-1]})]
            shown = [Picture("", f"step {step:,}", "", file.read_bytes()) for step, file in ends]
            title = f"{words(name)} of {run.name}" if len(runs) > 1 else words(name)
            drawn.append((title, f"{PICTURES}/{name}", len(steps), shown))
    return drawn


def _notes(arranged: Mapping[str, Sequence[Panel]], left_out: int) -> list[str]:
    means = "A noisy line of many points goes through means of neighbours; pale is what was logged."
    few = f"{left_out} curves of layers and blocks are not drawn: TensorBoard shows them."
    drawn = [panel for shown in arranged.values() for panel in shown]
    has_means = any(panels.has_means(line, p.style) for p in drawn for line in p.every_line)
    return [note for note, is_due in ((means, has_means), (few, left_out)) if is_due]


NOTHING = "–"


class TableCell(NamedTuple):
    """A cell: its text, the number behind it, and its tooltip."""

    text: str
    number: float | None = None
    hint: str = ""


class Table(NamedTuple):
    """The arguments of the macro of parts.html."""

    head: list[str]
    rows: Sequence[Sequence[str]]
    kind: str = ""
    attributes: Sequence[str] = ()


def summary(runs: Sequence[Run]) -> Table:
    """Final numbers, best accuracy, steps, speed, devices and commit of each run."""
    # Titles, cells, and the number to emphasise: max, min or none.
    columns: list[tuple[str, list[TableCell], Callable[..., float] | None]] = [
        ("step", list(map(_steps, runs)), None),
        ("training loss", _last("train/loss", runs), min),
    ]
    logged = {key for run in runs for key in run.series}
    for name in panels.evaluations(runs):
        accuracy, loss = f"{name}/accuracy", f"{name}/loss"
        if accuracy in logged:
            columns.append((f"{name}: accuracy", _last(accuracy, runs), max))
            columns.append((f"{name}: best", [_highest(accuracy, run) for run in runs], max))
        if loss in logged:
            columns.append((f"{name}: loss", _last(loss, runs), min))
    columns += [
        ("images/s", list(map(_speed, runs)), max),
        ("devices", list(map(_devices, runs)), None),
        ("commit", list(map(_commit, runs)), None),
        ("started", list(map(_started, runs)), None),
    ]
    names = [_name(i, run) for i, run in enumerate(runs)]
    shown = [_shown(cells, better) for _, cells, better in columns]
    head = ["run", *(title for title, _, _ in columns)]
    return Table(head, list(zip(names, *shown, strict=True)), "cards", _attributes(runs))


def differing_fields(runs: Sequence[Run]) -> list[str]:
    fields = dict.fromkeys(field for run in runs for field in run.fields)
    known = [run.fields for run in runs if run.fields]
    return [field for field in fields if len({one.get(field) for one in known}) > 1]


def differences(runs: Sequence[Run]) -> Table | None:
    """Differing fields; with more runs than such fields a row is a run, else a field."""
    fields = differing_fields(runs)
    if not fields:
        return None
    names = [_name(i, run) for i, run in enumerate(runs)]
    values = [[code(run.fields.get(field, NOTHING)) for field in fields] for run in runs]
    heads = [code(field) for field in fields]
    if len(runs) > len(fields):
        rows = [[name, *each] for name, each in zip(names, values, strict=True)]
        return Table(["run", *heads], rows, "", _attributes(runs))
    rows = [[field, *each] for field, *each in zip(heads, *values, strict=True)]
    return Table(["field", *names], rows)


def same_fields(runs: Sequence[Run]) -> list[list[str]]:
    """Fields in which the runs agree, with their values."""
    differing = set(differing_fields(runs))
    fields = next((run.fields for run in runs if run.fields), {})
    return [[code(field), code(value)] for field, value in fields.items() if field not in differing]


def swatch(i: int) -> Markup:
    """A piece of the line of run number `i`."""
    return Markup(f'<svg class="swatch run{i}" viewBox="0 0 24 8"><path d="M1 4h22"/></svg>')


def _name(i: int, run: Run) -> Markup:
    return Markup('<span title="{}">{}{}</span>').format(run.folder, swatch(i), run.name)


def _attributes(runs: Sequence[Run]) -> list[Markup]:
    return [Markup(f'data-run="{i}"') for i in range(len(runs))]


def _shown(cells: Sequence[TableCell], better: Callable[..., float] | None) -> list[str]:
    numbers = {cell.number for cell in cells if cell.number is not None}
    best = better(numbers) if better and len(numbers) > 1 else None
    texts = [bold(c.text) if c.number is not None and c.number == best else c.text for c in cells]
    return [
        Markup('<span title="{}">{}</span>').format(cell.hint, text) if cell.hint else text
        for cell, text in zip(cells, texts, strict=True)
    ]


def _last(key: str, runs: Sequence[Run]) -> list[TableCell]:
    column = [run.series[key].values[-1] for run in runs if key in run.series]
    cells = []
    for run in runs:
        cell = TableCell(NOTHING)
        if series := run.series.get(key):
            value, hint = series.values[-1], f"at step {series.steps[-1]:,}"
            cell = TableCell("not finite", hint=hint)
            if not math.isnan(value):
                cell = TableCell(readable(key, value, column), value, hint)
        cells.append(cell)
    return cells


def _highest(key: str, run: Run) -> TableCell:
    series = run.series.get(key, Series([], []))
    finite = [(v, -step) for step, v in zip(*series, strict=True) if not math.isnan(v)]
    if not finite:
        return TableCell(NOTHING)
    value, step = max(finite)  # the first one of equal ones
    return TableCell(f"{format_percent(value)} at {-step:,}", value)


def _steps(run: Run) -> TableCell:
    if not run.series:
        return TableCell("nothing logged yet")
    of = f" of {run.planned_steps:,}" if run.planned_steps else ""
    return TableCell(f"{run.last_step:,}{of}")


def _speed(run: Run) -> TableCell:
    series = run.series.get("speed/images_per_second", Series([], []))
    finite = [value for value in series.values if not math.isnan(value)]
    if not finite:
        return TableCell(NOTHING)
    middle = statistics.median(finite)
    text = f"{middle:,.0f}" if middle >= 10 else f"{middle:.2g}"
    return TableCell(text, middle, "median of all rows")


def _devices(run: Run) -> TableCell:
    if not run.starts or not isinstance(run.starts[-1].get("devices"), dict):
        return TableCell(NOTHING)
    devices = run.starts[-1]["devices"]
    return TableCell(f"{devices.get('count')} × {devices.get('kind')}")


def _commit(run: Run) -> TableCell:
    """The commit of the last start; a + means changes that were not committed."""
    commit = str(run.starts[-1].get("commit") or "") if run.starts else ""
    if not commit:
        return TableCell(NOTHING)
    return TableCell(commit[:8] + ("+" if commit.endswith("+") else ""), hint=commit)


def _started(run: Run) -> TableCell:
    """The time of the run's first start, in UTC as it is logged, and its number of starts."""
    if not run.starts:
        return TableCell(NOTHING)
    times = [str(start.get("time", "")) for start in run.starts]
    again = f", {len(times)} starts" if len(times) > 1 else ""
    return TableCell(f"{times[0][:16].replace('T', ' ')} UTC{again}", hint="\n".join(times))
