"""Small pictures for pages of HTML."""

import io
import warnings

from PIL import Image, ImageFile

from vit_jax.core.image_files import OPENED
from vit_jax.core.rgb import rgb
from vit_jax.draw import html_page

QUALITY = 78  # of JPEG


def data_url(data: bytes, side: int, *, upright: bool = False) -> str | None:
    """An encoded image, at most `side` pixels high and wide, as a data: URL.

    upright: turn it by its EXIF orientation. None if it cannot be decoded, not even in part.
    """
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=OPENED)
            image.draft("RGB", (side, side))
            small = rgb(image, upright=upright)
    except Exception:  # damaged images are shown where possible; decoders raise anything
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=QUALITY)
    return html_page.image_url(out.getvalue(), "jpeg")
