"""The tables of a report: final numbers of the runs, and the fields that differ."""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from vit_jax.draw import html_page
from vit_jax.store.runs import Run, Series
from vit_jax.tools.look.report import panels

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


def summary(runs: Sequence[Run]) -> str:
    """A row for each run: final numbers, best accuracy, steps, speed, devices, commit."""
    columns = [
        Column("step", _steps),
        Column("training loss", functools.partial(_final, "train/loss", "{:#.4g}"), min),
    ]
    logged = {key for run in runs for key in run.series}
    for name in panels.evaluations(runs):
        accuracy, loss = f"{name}/accuracy", f"{name}/loss"
        if accuracy in logged:
            columns += [
                Column(f"{name}: accuracy", functools.partial(_final, accuracy, "{:.2%}"), max),
                Column("best", functools.partial(_highest, accuracy), max),
            ]
        if loss in logged:
            columns.append(Column(f"{name}: loss", functools.partial(_final, loss, "{:#.4g}"), min))
    columns += [
        Column("images/s", _speed, max),
        Column("devices", _devices),
        Column("commit", _commit),
        Column("started", _started),
    ]
    head = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
    cells = [[column.cell(run) for run in runs] for column in columns]
    best = [_best(column, row) for column, row in zip(columns, cells, strict=True)]
    rows = [
        f'<tr data-run="{i}">{_run_header(i, run)}'
        + "".join(
            _td(row[i], emphasised=row[i].number is not None and row[i].number == most)
            for row, most in zip(cells, best, strict=True)
        )
        + "</tr>"
        for i, run in enumerate(runs)
    ]
    return _table(f"<th>run</th>{head}", rows)


def differing_fields(runs: Sequence[Run]) -> list[str]:
    """Fields of the config in which the runs that have one are not all alike."""
    fields = dict.fromkeys(field for run in runs for field in run.fields)
    known = [run.fields for run in runs if run.fields]
    return [field for field in fields if len({one.get(field) for one in known}) > 1]


def differences(runs: Sequence[Run]) -> str:
    """The fields that differ; with more runs than such fields a row is a run, else a field."""
    fields = differing_fields(runs)
    if not fields:
        return ""
    headers = [_run_header(i, run) for i, run in enumerate(runs)]
    if len(runs) > len(fields):
        head = "<th>run</th>" + "".join(f"<th><code>{escape(f)}</code></th>" for f in fields)
        rows = [
            f'<tr data-run="{i}">{headers[i]}'
            + "".join(_value(run, field) for field in fields)
            + "</tr>"
            for i, run in enumerate(runs)
        ]
    else:
        head = "<th>field</th>" + "".join(headers)
        rows = [
            f'<tr><th scope="row"><code>{escape(field)}</code></th>'
            + "".join(_value(run, field) for run in runs)
            + "</tr>"
            for field in fields
        ]
    return _table(head, rows)


def same_fields(runs: Sequence[Run]) -> str:
    """The fields in which the runs agree, with their values; "" if no run has a config."""
    differing = set(differing_fields(runs))
    fields = next((run.fields for run in runs if run.fields), {})
    rows = [
        f'<tr><th scope="row"><code>{escape(field)}</code></th>'
        f"<td><code>{escape(value)}</code></td></tr>"
        for field, value in fields.items()
        if field not in differing
    ]
    return _table("<th>field</th><th>value</th>", rows) if rows else ""


def swatch(i: int) -> str:
    """A piece of the line of run number `i`."""
    return f'<svg class="swatch run{i}" viewBox="0 0 24 8"><path d="M1 4h22"/></svg>'


def _run_header(i: int, run: Run) -> str:
    """The name of run number `i` beside a piece of its line."""
    return f'<th scope="row" title="{escape(str(run.folder))}">{swatch(i)}{escape(run.name)}</th>'


def _table(head: str, rows: Sequence[str]) -> str:
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{html_page.lines(rows)}\n</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def _td(cell: TableCell, *, emphasised: bool) -> str:
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    text = f"<b>{escape(cell.text)}</b>" if emphasised else escape(cell.text)
    return f"<td{hint}>{text}</td>"


def _best(column: Column, cells: Sequence[TableCell]) -> float | None:
    """The number to emphasise; None where there is nothing to choose from."""
    numbers = [cell.number for cell in cells if cell.number is not None]
    return column.better(numbers) if column.better and len(set(numbers)) > 1 else None


def _value(run: Run, field: str) -> str:
    return f"<td><code>{escape(run.fields.get(field, NOTHING))}</code></td>"


def _final(key: str, form: str, run: Run) -> TableCell:
    series = run.series.get(key)
    if series is None:
        return TableCell(NOTHING)
    step, value = series.steps[-1], series.values[-1]
    if math.isnan(value):
        return TableCell("not finite", hint=f"at step {step:,}")
    return TableCell(form.format(value), value, f"at step {step:,}")


def _highest(key: str, run: Run) -> TableCell:
    series = run.series.get(key, Series([], []))
    finite = [(v, -step) for step, v in zip(*series, strict=True) if not math.isnan(v)]
    if not finite:
        return TableCell(NOTHING)
    value, step = max(finite)  # the first one of equal ones
    return TableCell(f"{value:.2%} at {-step:,}", value)


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
    """The time of the run's first start, and its number of starts."""
    if not run.starts:
        return TableCell(NOTHING)
    times = [str(start.get("time", "")) for start in run.starts]
    again = f", {len(times)} starts" if len(times) > 1 else ""
    return TableCell(f"{times[0][:16].replace('T', ' ')}{again}", hint="\n".join(times))
