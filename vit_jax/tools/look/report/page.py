"""The page: one HTML file that needs nothing else, neither a network nor other files."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from etils import epath

from vit_jax.draw import charts, html_page
from vit_jax.draw.html_page import Picture
from vit_jax.store.runs import Run
from vit_jax.store.workdir import PICTURES
from vit_jax.tools.look.report import chart, panels, tables
from vit_jax.tools.look.report.panels import Panel

MOST_STEPS = 3  # of a picture: the first, the last, and between them


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
        looks=[(i % len(charts.RUNS), charts.dashes(i)) for i in range(len(runs))],
        swatch=tables.swatch,
        summary=tables.summary(runs),
        sections={
            name: [chart.draw(panel, last_step) for panel in shown]
            for name, shown in arranged.items()
        },
        drawn=_drawn(runs),
        notes=_notes(arranged, panels.left_out(runs)),
        differences=tables.differences(runs),
        same=tables.same_fields(runs),
    )


def _drawn(runs: Sequence[Run]) -> list[tuple[str, str, int, list[Picture]]]:
    """Titles of what the runs' evaluations drew, folders, numbers of steps, and some of these."""
    drawn = []
    for run in runs:
        files: dict[epath.Path, dict[int, epath.Path]] = {}
        for file in (run.folder / PICTURES).glob("*/*/*.png"):
            if file.stem.isdecimal():
                files.setdefault(file.parent, {})[int(file.stem)] = file
        for folder in sorted(files):
            name, steps = "/".join(folder.parts[-2:]), sorted(files[folder])
            places = sorted(
                {round(i * (len(steps) - 1) / (MOST_STEPS - 1)) for i in range(MOST_STEPS)}
            )
            shown = [
                Picture("", f"step {steps[k]:,}", "", files[folder][steps[k]].read_bytes())
                for k in places
            ]
            title = f"{name} of {run.name}" if len(runs) > 1 else name
            drawn.append((title, f"{PICTURES}/{name}", len(steps), shown))
    return drawn


def _notes(arranged: Mapping[str, Sequence[Panel]], left_out: int) -> list[str]:
    """Notes on the charts."""
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
    return notes
