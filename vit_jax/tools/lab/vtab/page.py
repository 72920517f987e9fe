"""results.html: VTAB's numbers on one page, with what each depends on."""

from vit_jax.draw import html_page
from vit_jax.tools.lab.vtab.summary import TaskResult, VtabSummary, spell
from vit_jax.tools.lab.vtab.table import GROUPS, TASKS

FILE = "results.html"


def page(name: str, summary: VtabSummary) -> str:
    """The text of the file."""
    choices = list(dict.fromkeys(key for each in summary.results for key in each.choices))
    return html_page.render(
        "tools/lab/vtab/page.html",
        title=name,
        subtitle=f"{summary.checkpoint} · {summary.config} · VTAB-1k",
        means=[
            [f"mean of {what}", spell(mean), summary.lacking(what)]
            for what, mean in summary.means().items()
        ],
        waiting=len(summary.asked) - len(summary.results),
        left_out=[task for task in TASKS if task not in summary.asked],
        groups={
            group: [_row(each) for each in summary.results if TASKS[each.name].group == group]
            for group in GROUPS
        },
        choices=choices,
        depends=[
            [TASKS[each.name].title, *(each.choices.get(key, "") for key in choices)]
            for each in summary.results
        ],
    )


def _row(each: TaskResult) -> list[str]:
    seeds = len(each.accuracy.values) if each.accuracy else 0
    chosen = ", ".join(f"{field}={value}" for field, value in each.chosen.items())
    return [TASKS[each.name].title, spell(each.accuracy), str(seeds), chosen, each.why]
