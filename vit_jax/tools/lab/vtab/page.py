"""results.html: VTAB's numbers on one page, with what each depends on."""

from collections.abc import Sequence
from html import escape

from vit_jax.draw import html_page
from vit_jax.tools.lab.vtab.summary import TaskResult, VtabSummary, spell
from vit_jax.tools.lab.vtab.table import GROUPS, TASKS

FILE = "results.html"
CSS = """
td.number { text-align: right; white-space: nowrap; } table.choices td { font-size: 13px; }
"""


def page(name: str, summary: VtabSummary) -> str:
    """The text of the file."""
    rows = [
        f"<tr><th scope='row'>mean of {escape(what)}</th><td class='number'>{spell(mean)}</td>"
        f"<td>{escape(summary.lacking(what))}</td></tr>"
        for what, mean in summary.means().items()
    ]
    waiting = len(summary.asked) - len(summary.results)
    left_out = [task for task in TASKS if task not in summary.asked]
    body = [
        "<main><h2>Means of top-1 accuracy</h2>",
        _table(["", "mean", ""], rows),
        f"<p>{waiting} tasks are to come.</p>" if waiting else "",
        f"<p>Left out: {escape(', '.join(left_out))}.</p>" if left_out else "",
        *(part for group in GROUPS for part in _group(summary, group)),
        "<h2>What each number depends on</h2>",
        *_choices(summary.results),
        "</main>",
    ]
    return html_page.document(
        escape(name),
        body,
        program="vtab",
        subtitle=escape(f"{summary.checkpoint} · {summary.config} · VTAB-1k"),
        css=CSS,
        policy="",
    )


def _group(summary: VtabSummary, group: str) -> list[str]:
    rows = [
        f"<tr><th scope='row'>{escape(TASKS[each.name].title)}</th>"
        f"<td class='number'>{spell(each.accuracy)}</td>"
        f"<td class='number'>{len(each.accuracy.values) if each.accuracy else 0}</td>"
        f"<td>{escape(', '.join(f'{k}={v}' for k, v in each.chosen.items()))}</td>"
        f"<td>{escape(each.why)}</td></tr>"
        for each in summary.results
        if TASKS[each.name].group == group
    ]
    if not rows:
        return []
    return [f"<h2>{group.capitalize()}</h2>", _table(["", "accuracy", "seeds", "chosen", ""], rows)]


def _choices(results: Sequence[TaskResult]) -> list[str]:
    names = list(dict.fromkeys(name for each in results for name in each.choices))
    rows = [
        f"<tr><th scope='row'>{escape(TASKS[each.name].title)}</th>"
        + "".join(f"<td>{escape(each.choices.get(name, ''))}</td>" for name in names)
        + "</tr>"
        for each in results
    ]
    return [_table(["", *names], rows, kind="choices")]


def _table(head: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    columns = "".join(f"<th scope='col'>{escape(text)}</th>" for text in head)
    return f"<table class='{kind}'><tr>{columns}</tr>{''.join(rows)}</table>"
