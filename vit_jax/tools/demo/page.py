"""The page: HTML that needs nothing but the server's answers."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from vit_jax.draw import html_page, thumbnails
from vit_jax.tools.demo.examples import Sample
from vit_jax.tools.demo.looker import SMALL, Looker
from vit_jax.tools.demo.server import MAX_BYTES

THUMBNAIL = 128  # pixels


def page(looker: Looker, checkpoint: str, examples: Sequence[Sample]) -> str:
    """The text of the page."""
    script = "\n" + _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    height, width = looker.image_size
    kind = looker.kind
    body = _file("page.html").format(
        title=escape(kind.title),
        note=escape(kind.note),
        size=f"{width} × {height}",
        size_class="small" if max(height, width) <= SMALL else "",
        max_bytes=MAX_BYTES,
        examples=html_page.lines(_example(k, each) for k, each in enumerate(examples)),
    )
    return html_page.document(
        escape(looker.name),
        [body, f"<script>{script}</script>"],
        program="demo",
        subtitle=f"{escape(checkpoint)} · {looker.num_classes:,} classes",
        css=_file("page.css"),
        policy=f"script-src 'sha256-{digest}'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'",
    )


def _example(place: int, example: Sample) -> str:
    url = thumbnails.data_url(example.data, THUMBNAIL, upright=True)
    name = escape(example.name, quote=True)
    picture = f'<img src="{url}" alt="{name}">' if url else name
    return f'<button type="button" data-example="{place}" title="{name}">{picture}</button>'


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
