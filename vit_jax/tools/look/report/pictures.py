"""The pictures that a run's evaluations drew, at a few of its steps."""

from collections.abc import Sequence
from html import escape

from etils import epath

from vit_jax.draw import html_page
from vit_jax.store.runs import Run
from vit_jax.store.workdir import PICTURES

MOST_STEPS = 3  # of a picture: the first, the last, and between them
CSS = """
.drawn { display: grid; gap: 16px; }
.drawn { grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); }
.drawn img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff; }
"""


def sections(runs: Sequence[Run]) -> list[str]:
    """A section for each picture of each run; none where a run has drawn nothing."""
    made = []
    for run in runs:
        of = f" of {escape(run.name)}" if len(runs) > 1 else ""
        folders = sorted({file.parent for file in _files(run)})
        made += [_section(folder, run, of) for folder in folders]
    return made


def _files(run: Run) -> list[epath.Path]:
    found = (run.folder / PICTURES).glob("*/*/*.png")
    return [file for file in found if file.stem.isdecimal()]


def _section(folder: epath.Path, run: Run, of: str) -> str:
    files = sorted((f for f in _files(run) if f.parent == folder), key=lambda f: int(f.stem))
    last = len(files) - 1
    places = sorted({round(i * last / (MOST_STEPS - 1)) for i in range(MOST_STEPS)})
    figures = [_figure(files[place]) for place in places]
    name = escape("/".join(folder.parts[-2:]))
    note = f'<span class="note">{len(files):,} steps in {PICTURES}/{name}</span>'
    return f'<h2>{name}{of} {note}</h2>\n<div class="drawn">\n{html_page.lines(figures)}\n</div>'


def _figure(file: epath.Path) -> str:
    url = html_page.image_url(file.read_bytes(), "png")
    step = f"step {int(file.stem):,}"
    return f'<figure><figcaption><b>{step}</b></figcaption><img src="{url}" alt="{step}"></figure>'
