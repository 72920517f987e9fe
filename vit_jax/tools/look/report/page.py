"""The page: panels, pictures, and tables of final numbers and of fields that differ."""

import functools
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
    where = f"{runs[0].folder} · " if len(runs) == 1 else ""
    return html_page.render(
        "tools/look/report/page.html",
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        subtitle=f"{where}up to step {last_step:,} · {made_at:%Y-%m-%d %H:%M %Z}",
        runs=runs,
        looks=[
            (i % len(charts.RUNS), charts.dashes(i))
            for i in range(max(len(runs), panels.MOST_TOGETHER))
        ],
        swatch=swatch,
        summary=summary(runs),
        sections={
            name: [panels.draw(panel, last_step, len(runs)) for panel in shown]
            for name, shown in arranged.items()
        },
        drawn=_drawn(runs),
        notes=_notes(arranged, panels.left_out(runs)),
        differences=differences(runs),
        same=same_fields(runs),
    )


def _drawn(runs: Sequence[Run]) -> list[tuple[str, str, int, list[Picture]]]:
    """Titles of what the runs' evaluations drew, folders, numbers of steps, first and last ones."""
    drawn = []
    for run in runs:
        files: dict[epath.Path, dict[int, epath.Path]] = {}
        for file in (run.folder / PICTURES).glob("*/*/*.png"):
            if file.stem.isdecimal():
                files.setdefault(file.parent, {})[int(file.stem)] = file
        for folder in sorted(files):
            name, steps = "/".join(folder.parts[-2:]), sorted(files[folder])
            shown = [
                Picture("", f"step {step:,}", "", files[folder][step].read_bytes())
                for step in sorted({steps[0], steps[-1]})
            ]
            title = f"{words(name)} of {run.name}" if len(runs) > 1 else words(name)
            drawn.append((title, f"{PICTURES}/{name}", len(steps), shown))
    return drawn


def _notes(arranged: Mapping[str, Sequence[Panel]], left_out: int) -> list[str]:
    notes = []
    if any(panels.shows_means(panel) for shown in arranged.values() for panel in shown):
        notes.append(
            "A noisy line of many points goes through means of neighbours, which hovering shows; "
            "pale behind it is what was logged."
        )
    if left_out:
        notes.append(
            f"{left_out} curves of layers and blocks are not drawn: TensorBoard shows them."
        )
    return notes


NOTHING = "–"


class TableCell(NamedTuple):
    """A cell: its text, the number behind it, and its tooltip."""

    text: str
    number: float | None = None
    hint: str = ""


class Column(NamedTuple):
    """A column; `better`: which of its numbers is to be emphasised, max, min or none."""

    title: str
    cell: Callable[[Run], TableCell]
    better: Callable[[Sequence[float]], float] | None = None


class Table(NamedTuple):
    """The arguments of the macro of parts.html."""

    head: list[str]
    rows: Sequence[Sequence[str]]
    kind: str = ""
    attributes: Sequence[str] = ()


def summary(runs: Sequence[Run]) -> Table:
    """A row for each run: final numbers, best accuracy, steps, speed, devices, commit."""
    columns = [
        Column("step", _steps),
        Column("training loss", _losses("train/loss", runs), min),
    ]
    logged = {key for run in runs for key in run.series}
    for name in panels.evaluations(runs):
        accuracy, loss = f"{name}/accuracy", f"{name}/loss"
        if accuracy in logged:
            columns += [
                Column(
                    f"{name}: accuracy", functools.partial(_final, accuracy, format_percent), max
                ),
                Column(f"{name}: best", functools.partial(_highest, accuracy), max),
            ]
        if loss in logged:
            columns.append(Column(f"{name}: loss", _losses(loss, runs), min))
    columns += [
        Column("images/s", _speed, max),
        Column("devices", _devices),
        Column("commit", _commit),
        Column("started", _started),
    ]
    cells = [[column.cell(run) for run in runs] for column in columns]
    best = [_best(column, each) for column, each in zip(columns, cells, strict=True)]
    rows = [
        [_name(i, run)] + [_cell(each[i], most) for each, most in zip(cells, best, strict=True)]
        for i, run in enumerate(runs)
    ]
    head = ["run", *(column.title for column in columns)]
    return Table(head, rows, "cards", _attributes(runs))


def differing_fields(runs: Sequence[Run]) -> list[str]:
    """Fields of the config in which the runs that have one are not all alike."""
    fields = dict.fromkeys(field for run in runs for field in run.fields)
    known = [run.fields for run in runs if run.fields]
    return [field for field in fields if len({one.get(field) for one in known}) > 1]


def differences(runs: Sequence[Run]) -> Table | None:
    """The fields that differ; with more runs than such fields a row is a run, else a field."""
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
    """The fields in which the runs agree, with their values; none if no run has a config."""
    differing = set(differing_fields(runs))
    fields = next((run.fields for run in runs if run.fields), {})
    return [[code(field), code(value)] for field, value in fields.items() if field not in differing]


def swatch(i: int) -> Markup:
    """A piece of the line of run number `i`."""
    return Markup(f'<svg class="swatch run{i}" viewBox="0 0 24 8"><path d="M1 4h22"/></svg>')


def _name(i: int, run: Run) -> Markup:
    """The name of run number `i` beside a piece of its line."""
    return Markup('<span title="{}">{}{}</span>').format(run.folder, swatch(i), run.name)


def _attributes(runs: Sequence[Run]) -> list[Markup]:
    return [Markup(f'data-run="{i}"') for i in range(len(runs))]


def _cell(cell: TableCell, most: float | None) -> str:
    text = bold(cell.text) if cell.number is not None and cell.number == most else cell.text
    return Markup('<span title="{}">{}</span>').format(cell.hint, text) if cell.hint else text


def _best(column: Column, cells: Sequence[TableCell]) -> float | None:
    """The number to emphasise; None where there is nothing to choose from."""
    numbers = [cell.number for cell in cells if cell.number is not None]
    return column.better(numbers) if column.better and len(set(numbers)) > 1 else None


def _losses(key: str, runs: Sequence[Run]) -> Callable[[Run], TableCell]:
    """The cells of a column of losses."""
    column = [run.series[key].values[-1] for run in runs if key in run.series]
    return functools.partial(_final, key, functools.partial(readable, key, column=column))


def _final(key: str, form: Callable[[float], str], run: Run) -> TableCell:
    series = run.series.get(key)
    if series is None:
        return TableCell(NOTHING)
    step, value = series.steps[-1], series.values[-1]
    if math.isnan(value):
        return TableCell("not finite", hint=f"at step {step:,}")
    return TableCell(form(value), value, f"at step {step:,}")


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
    return TableCell(
        f"{middle:,.0f}" if middle >= 10 else f"{middle:.2g}", middle, "median of all rows"
    )


def _devices(run: Run) -> TableCell:
    """Devices of the last start: "8 x TPU v5e"."""
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
