"""The page: HTML that needs nothing but the server's answers."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from vit_jax.draw import html_page
from vit_jax.tools.demo.examples import Sample
from vit_jax.tools.demo.looker import SMALL, Looker
from vit_jax.tools.demo.server import MAX_BYTES

THUMBNAIL = 128  # pixels


def page(looker: Looker, checkpoint: str, examples: Sequence[Sample]) -> str:
    """The text of the page."""
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    shown = [
        (each.name, html_page.thumbnail_url(each.data, THUMBNAIL, upright=True))
        for each in examples
    ]
    return html_page.render(
        "tools/demo/page.html",
        title=looker.name,
        subtitle=f"{checkpoint} · {looker.num_classes:,} classes",
        kind=looker.kind,
        size=looker.image_size,
        smallest=SMALL,
        max_bytes=MAX_BYTES,
        examples=shown,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
