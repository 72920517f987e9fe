"""index.html: all pictures on one page that needs no other file and no network."""

import datetime
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, write_text
from vit_jax.draw import html_page
from vit_jax.draw.picture import Findings, Picture, Section
from vit_jax.store import disk_space

FILE = "index.html"
PROGRAM = "visualize"
_PICTURE = re.compile(r"<code>([\w.-]+\.(?:png|gif|webp))</code>")
CSS = """
.pictures { display: grid; gap: 16px; }
.pictures { grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
.pictures figure { min-width: 0; } .pictures figure.wide { grid-column: 1 / -1; }
.pictures img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.pictures img { background: #fff; border-radius: 6px; }
.pictures .scroll { overflow-x: auto; }
@media (max-width: 700px) { .pictures .wide img { max-width: none; width: 760px; } }
.pictures p { margin: 8px 4px; color: var(--quiet); }
table.numbers td { text-align: right; font-variant-numeric: tabular-nums; }
"""


def check_folder(folder: Path) -> None:
    """UserError if the page cannot be written there, or would replace one of something else."""
    try:
        disk_space.try_writing(folder)
        _pictures_there(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write(folder: Path, title: str, subtitle: str, findings: Sequence[Findings]) -> None:
    """Writes the page and its pictures, and removes those that a page before had alone.

    UserError if that is impossible.
    """
    pictures = {
        f"{picture.name}.{picture.ending}": picture.data
        for each in findings
        for picture in each.section.pictures
    }
    numbers = {name: number for each in findings for name, number in each.numbers.items()}
    now = datetime.datetime.now(datetime.UTC)
    text = page(title, subtitle, [each.section for each in findings], numbers, now)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _pictures_there(folder)
        for name, data in pictures.items():
            with atomic_file(folder / name) as temporary:
                temporary.write_bytes(data)
        write_text(folder / FILE, text)
        for name in before - set(pictures):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _pictures_there(folder: Path) -> set[str]:
    """The files of the pictures of the page in the folder. UserError if it is of another kind."""
    file = folder / FILE
    if not file.exists():
        return set()
    text = file.read_text(encoding="utf-8", errors="replace")
    if f"vit_jax {PROGRAM}</title>" not in text:
        raise UserError(
            f"--output={folder} has an {FILE} that this command did not write. Give another folder."
        )
    return set(_PICTURE.findall(text))


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"--output={folder} cannot be written: {error.strerror}. Give a folder that is writable "
        "and has room."
    )


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
        program=PROGRAM,
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
        f'<div class="scroll"><img src="{url}" alt="{title}"></div>\n'
        f"<p>{escape(picture.note)}</p></figure>"
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
