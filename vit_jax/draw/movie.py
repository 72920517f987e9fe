"""Small movies, as animated GIF and WebP, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from vit_jax.core.errors import UserError

FRAME_SECONDS = 0.6
LAST_SECONDS = 2.0  # of the last frame, before it starts again
QUALITY = 80  # of WebP
WIDEST = 640  # pixels


def gif(frames: Sequence[np.ndarray], *, seconds: float = FRAME_SECONDS) -> bytes:
    """Frames, uint8 [H, W, 3] of one size, as a GIF that repeats; `seconds` for each.

    Of at most 256 colours, the same in all frames, so that nothing flickers. Frames wider than
    WIDEST are made smaller. UserError for no frames or frames of several sizes.
    """
    images = _images(frames)
    # Colours of all frames together, from one picture that has them side by side.
    width, height = images[0].size
    strip = Image.new("RGB", (width, height * len(images)))
    for k, image in enumerate(images):
        strip.paste(image, (0, k * height))
    colours = strip.quantize(256, Image.Quantize.MEDIANCUT)
    white = any((np.asarray(image) == 255).all(axis=-1).any() for image in images)
    reduced = [_reduced(image, colours, white) for image in images]
    return _saved(reduced, "GIF", seconds, optimize=False, disposal=1)


def webp(frames: Sequence[np.ndarray], *, seconds: float = FRAME_SECONDS) -> bytes:
    """The same as a WebP, which has all colours and is smaller; UserError as in `gif`."""
    return _saved(_images(frames), "WEBP", seconds, quality=QUALITY, method=4)


def _images(frames: Sequence[np.ndarray]) -> list[Image.Image]:
    if not len(frames):
        raise UserError("A movie of no frames: give at least one checkpoint.")
    if len({np.shape(frame) for frame in frames}) > 1:
        shapes = ", ".join(sorted({str(np.shape(frame)[:2]) for frame in frames}))
        raise UserError(f"The frames of a movie have one size; these have {shapes}.")
    images = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    height, width = np.shape(frames[0])[:2]
    if width <= WIDEST:
        return images
    smaller = (WIDEST, max(1, round(height * WIDEST / width)))
    return [image.resize(smaller, Image.Resampling.LANCZOS) for image in images]


def _reduced(image: Image.Image, colours: Image.Image, white: bool) -> Image.Image:
    """The image in those colours. With `white`, the lightest becomes white, which stays white.

    A page's background would be a light gray otherwise.
    """
    small = image.quantize(palette=colours, dither=Image.Dither.NONE)
    if not white:
        return small
    table = np.array(colours.getpalette()).reshape(-1, 3)
    lightest = np.argmax(table.sum(axis=1))
    table[lightest] = 255
    places = np.array(small)
    places[(np.asarray(image) == 255).all(axis=-1)] = lightest
    reduced = Image.fromarray(places)
    reduced.putpalette(table.ravel().tolist())
    return reduced


def _saved(images: list[Image.Image], kind: str, seconds: float, **how: object) -> bytes:
    out = io.BytesIO()
    milliseconds = [round(1000 * seconds)] * (len(images) - 1) + [round(1000 * LAST_SECONDS)]
    images[0].save(
        out, kind, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, **how
    )
    return out.getvalue()
