"""The page: one HTML file that needs nothing else, neither a network nor other files."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from vit_jax.draw import html_page
from vit_jax.store.runs import Run
from vit_jax.tools.look.report import chart, panels, pictures, tables
from vit_jax.tools.look.report.panels import Panel

COLOURS = 8  # in page.css; further runs reuse them, dashed
DASHES = ("none", "5 3", "1.5 3", "8 3 1.5 3")


def page(runs: Sequence[Run], made_at: datetime) -> str:
    """The text of the file; `runs` have at least one row among them."""
    last_step = max(run.last_step for run in runs)
    arranged = panels.arrange(runs)
    title = escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    sections = [
        f'<h2>{name}</h2>\n<div class="panels">\n'
        f"{html_page.lines([chart.draw(panel, last_step) for panel in shown])}\n</div>"
        for name, shown in arranged.items()
    ]
    where = f"{escape(str(runs[0].folder))} · " if len(runs) == 1 else ""
    body = [
        _legend(runs) if len(runs) > 1 else "",
        f"<main>\n{tables.summary(runs)}",
        *sections,
        *pictures.sections(runs),
        _notes(arranged, panels.left_out(runs)),
        _configs(runs),
        f'</main><div id="tip"></div>\n<script>\n{script}</script>',
    ]
    return html_page.document(
        title,
        body,
        program="report",
        subtitle=f"{where}up to step {last_step:,} · {made_at:%Y-%m-%d %H:%M %Z}",
        css=_colours(len(runs)) + pictures.CSS,
        policy="script-src 'unsafe-inline'; img-src data:",
    )


def _colours(num_runs: int) -> str:
    return "".join(
        f".run{i} {{ --run: var(--colour{i % COLOURS}); "
        f"--dash: {DASHES[i // COLOURS % len(DASHES)]}; }}\n"
        for i in range(num_runs)
    )


def _legend(runs: Sequence[Run]) -> str:
    """The legend, which shows and hides runs."""
    entries = [
        f'<label data-run="{i}" title="{escape(str(run.folder))}">'
        f'<input type="checkbox" checked data-run="{i}">{tables.swatch(i)}'
        f"<span>{escape(run.name)}</span></label>"
        for i, run in enumerate(runs)
    ]
    return f"<nav>\n{html_page.lines(entries)}\n</nav>"


def _notes(arranged: Mapping[str, Sequence[Panel]], left_out: int) -> str:
    """Notes on the pictures."""
    notes = []
    if any(chart.shows_means(panel) for shown in arranged.values() for panel in shown):
        notes.append(
            "A noisy line of many points goes through means of neighbours, which hovering shows; "
            "pale behind it is what was logged."
        )
    if left_out:
        notes.append(
            f"{left_out} curves of layers and blocks are not drawn: TensorBoard shows them."
        )
    return f'<p class="aside notes">{" ".join(notes)}</p>' if notes else ""


def _configs(runs: Sequence[Run]) -> str:
    """The differing fields, and, folded, those in which the runs agree."""
    parts = []
    if len(runs) > 1:
        differences = tables.differences(runs)
        parts.append("<h2>Differences of the configs</h2>")
        parts.append(differences or '<p class="aside">None.</p>')
    same = tables.same_fields(runs)
    if same:
        what = "The fields that are the same" if len(runs) > 1 else "The config"
        parts.append(f"<details><summary>{what}</summary>\n{same}</details>")
    return html_page.lines(parts)
