"""index.html: all pictures on one page that needs no other file and no network."""

import datetime
from collections.abc import Mapping, Sequence
from html import escape

from vit_jax.draw import html_page
from vit_jax.visualize.picture import Picture, Section

FILE = "index.html"
CSS = """
.pictures { display: grid; gap: 16px; }
.pictures { grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
.pictures figure { min-width: 0; } .pictures figure.wide { grid-column: 1 / -1; }
.pictures img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.pictures img { background: #fff; border-radius: 6px; }
.pictures p { margin: 8px 4px; color: var(--quiet); }
table.numbers td { text-align: right; font-variant-numeric: tabular-nums; }
"""


def page(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    numbers: Mapping[str, float],
    made_at: datetime.datetime,
) -> str:
    """The text of the file."""
    body = ["<main>", *(_section(section) for section in sections), _numbers(numbers), "</main>"]
    return html_page.document(
        escape(title),
        body,
        program="visualize",
        subtitle=f"{escape(subtitle)} · {made_at:%Y-%m-%d %H:%M %Z}",
        css=CSS,
        policy="img-src data:",
    )


def _section(section: Section) -> str:
    said = f'<p class="aside">{escape(section.said)}</p>' if section.said else ""
    pictures = html_page.lines(map(_figure, section.pictures))
    shown = f'<div class="pictures">\n{pictures}\n</div>' if section.pictures else ""
    return f"<h2>{escape(section.title)}</h2>\n{said}\n{shown}"


def _figure(picture: Picture) -> str:
    url = html_page.image_url(picture.data, picture.ending)
    title = escape(picture.title, quote=True)
    return (
        f'<figure class="{"wide" if picture.wide else ""}"><figcaption><b>{title}</b>'
        f"<code>{escape(picture.name)}.{picture.ending}</code></figcaption>\n"
        f'<img src="{url}" alt="{title}">\n<p>{escape(picture.note)}</p></figure>'
    )


def _numbers(numbers: Mapping[str, float]) -> str:
    if not numbers:
        return ""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{value:.4g}</td></tr>'
        for name, value in numbers.items()
    ]
    return (
        "<h2>Numbers</h2>\n"
        f'<div class="wide"><table class="numbers">{html_page.lines(rows)}</table></div>'
    )
