"""Pages of HTML that need nothing else, neither a network nor other files.

page.html is the frame of all of them, page.css their one style sheet, parts.html what they share. A
page has a template beside the code that fills it, which extends "draw/page.html".
"""

import base64
import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from PIL import Image, ImageFile

from vit_jax.core.arrays import encode
from vit_jax.core.image_files import open_image, rgb
from vit_jax.draw import charts, style

TEMPLATES = Path(__file__).parents[1]  # names of templates are paths in the package
QUALITY = 78  # of a thumbnail's JPEG

bold, code = Markup("<b>{}</b>").format, Markup("<code>{}</code>").format


class Picture(NamedTuple):
    """A picture on a page, and in a file NAME.ENDING."""

    name: str
    title: str
    note: str  # a sentence or two on how to read it
    # Function that draws it for the current canvas (style.on_page), or the file's bytes.
    drawn: Callable[[], Figure] | bytes
    ending: str = "png"  # png or webp

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.drawn if isinstance(self.drawn, bytes) else style.png(self.drawn())

    def on_page(self) -> tuple[list[Markup], str]:
        """The elements that show it, and the note beside them.

        A figure is drawn twice, for a large screen and for a phone: page.css shows one of these.
        """
        if isinstance(self.drawn, bytes):
            with Image.open(io.BytesIO(self.drawn)) as image:
                width = charts.width_px(image.width / image.info.get("dpi", (75,))[0])
            shown = Markup(
                '<div class="scroll"><img src="{}" alt="{}" style="width: {:.0f}px"></div>'
            )
            url = image_url(self.drawn, self.ending)
            return [shown.format(url, self.title, width)], self.note
        elements = []
        for kind, width_in in (("broad", style.WIDTH_IN), ("narrow", style.NARROW_IN)):
            with style.on_page(width_in):
                figure = self.drawn()
            elements.append(charts.figure_svg(figure, self.title, kind))
        label = str(figure.get_label())
        sentence = f"{label[0].upper()}{label[1:]}." if label else ""
        return elements, f"{self.note} {sentence}".strip()


class Section(NamedTuple):
    """A part of a page: pictures, and text beside or instead of them."""

    title: str
    pictures: Sequence[Picture]
    text: str = ""


class Findings(NamedTuple):
    """A section, and the numbers behind it by name."""

    section: Section
    numbers: Mapping[str, float]


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["filled_columns"] = filled_columns
    return environment


_UNITS = "|".join(("%", " [kMGT]", " ([KMGT]i)?B", "%? (of|at) [0-9,]+"))
# "1,123", "5.29e-7", "<0.01%", "16.8 MiB", "98.06% at 400", "90.25% ± 0.07 (2 seeds)".
_NUMBER = rf"[<>-]?[0-9.,:]+(e-?[0-9]+)?({_UNITS})?( ± [0-9.e-]+)?( [(][0-9]+ seeds?[)])?"
_NUMBER_OR_NONE = re.compile(f"({_NUMBER}|[–-])?")


def filled_columns(rows: Sequence[Sequence[object]]) -> dict[int, bool]:
    """Columns of a table that are not empty, and whether they are numbers; heads never are."""
    columns = enumerate(zip(*rows, strict=True))
    texts = {i: [escape(cell).striptags() for cell in column] for i, column in columns if i}
    filled = {i: all(map(_NUMBER_OR_NONE.fullmatch, c)) for i, c in texts.items() if any(c)}
    return {0: False} | filled


def render(template: str, *, title: str, subtitle: str, **content: object) -> str:
    """Renders a template such as "evaluate/page.html", with what is not Markup escaped."""
    text = _environment().get_template(template).render(title=title, subtitle=subtitle, **content)
    # Bytes of a file's name that are not text become \xXX.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def image_url(data: bytes, ending: str) -> str:
    """Encodes an image file as a data: URL; ending: png, jpeg or webp."""
    return f"data:image/{ending};base64,{base64.b64encode(data).decode()}"


def thumbnail_url(data: bytes, side: int, *, upright: bool = False) -> str | None:
    """Shrinks an encoded image to at most `side` pixels, as a data: URL.

    Returns:
      None if the image cannot be decoded, not even in part.
    """
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = open_image(io.BytesIO(data))
            image.draft("RGB", (side, side))
            small = rgb(image, upright=upright)
    except Exception:  # damaged images are shown where possible; decoders raise anything
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    return picture_url(small, side)


def picture_url(image: Image.Image, side: int) -> str:
    """Shrinks an RGB image in place to at most `side` pixels, as a data: URL."""
    image.thumbnail((side, side))
    return image_url(encode(image, "JPEG", quality=QUALITY), "jpeg")
