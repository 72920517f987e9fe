"""index.html: all pictures on one page that needs no other file and no network."""

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file, write_text
from vit_jax.draw import html_page
from vit_jax.draw.html_page import Findings, Section
from vit_jax.store import workdir

FILE = "index.html"
PROGRAM = "visualize"
_PICTURE = re.compile(r"<code>([\w.-]+\.(?:png|gif|webp))</code>")


def check_folder(folder: Path) -> None:
    """UserError if the page cannot be written there, or would replace one of something else."""
    try:
        workdir.try_writing(folder)
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
    return html_page.render(
        "tools/look/visualize/page.html",
        title=title,
        subtitle=f"{subtitle} · {made_at:%Y-%m-%d %H:%M %Z}",
        sections=sections,
        numbers=[[name, f"{value:.4g}"] for name, value in numbers.items()],
    )
