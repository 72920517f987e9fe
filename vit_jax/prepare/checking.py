"""Looks at one image: can it be decoded, to what, and has it been seen before?"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from PIL import Image, ImageOps

from vit_jax.data.header import orientation, stored_size
from vit_jax.prepare.copies.perceptual import SIDE, Looks, perceptual_hash
from vit_jax.prepare.faults import CONVERT, KEEP, SET_ASIDE, Policy

JPEG_QUALITY = 95  # of converted images, without subsampling of colours
EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".mpo"),  # a JPEG with further ones behind it
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
}
# No others are looked at: for EPS Pillow would start a program, and some plugins are hardly used.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "MPO")
KNOWN_EXTENSIONS = frozenset(extension for group in EXTENSIONS.values() for extension in group)
GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})


class Checked(NamedTuple):
    """What was found.

    Attributes:
      faults: of faults.FAULTS, all of them.
      action: the strictest that the policy has for them.
      height, width: in pixels as stored; 0 if unknown.
      format: as Pillow names it, such as "JPEG"; "" if unknown.
      sha256: of the file's bytes.
      look: the perceptual hash; None: not decoded, or too little to see.
      mirrored: that of the image mirrored left to right.
      converted: the new file, where `action` is CONVERT.
    """

    faults: tuple[str, ...]
    action: str
    height: int
    width: int
    format: str
    sha256: bytes
    look: int | None
    mirrored: int | None
    converted: bytes | None


def check(data: bytes, name: str, policy: Policy, max_pixels: int) -> Checked:
    """Decodes the image of these bytes, a JPEG at an eighth of its size. Never raises."""
    digest = hashlib.sha256(data).digest()
    if not data:
        return Checked(("empty",), policy["empty"], 0, 0, "", digest, None, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes, which are looked at here, and odd metadata
        return _check(data, name, policy, max_pixels, digest)


def _check(data: bytes, name: str, policy: Policy, max_pixels: int, digest: bytes) -> Checked:
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return _decoded(data, name, policy, max_pixels, digest)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _decoded(data: bytes, name: str, policy: Policy, max_pixels: int, digest: bytes) -> Checked:
    bad = lambda fault, size=(0, 0), kind="": Checked(
        (fault,), policy[fault], size[1], size[0], kind, digest, None, None, None
    )
    # Pillow's plugins raise whatever comes to their minds for damaged files.
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        size, kind = image.size, image.format or ""
    except Exception:
        return bad("unreadable")
    if min(size) < 1:
        return bad("unreadable", size, kind)
    if size[0] * size[1] > max_pixels:
        return bad("too_large", size, kind)
    try:
        faults = _faults(image, data, name)
        looks = _looks(image)
        action = strictest(policy[fault] for fault in faults)
        converted = _converted(data, rotated="rotated" in faults) if action == CONVERT else None
    except Exception:
        return bad("truncated", size, kind)
    look, mirrored = looks or (None, None)
    return Checked(faults, action, size[1], size[0], kind, digest, look, mirrored, converted)


def strictest(actions: Iterable[str]) -> str:
    """Of several actions the one to take."""
    found = set(actions)
    return next((action for action in (SET_ASIDE, CONVERT) if action in found), KEEP)


def _faults(image: Image.Image, data: bytes, name: str) -> tuple[str, ...]:
    """Of an image of which only the header was read."""
    extension = PurePosixPath(name).suffix.lower()
    expected = EXTENSIONS.get(image.format or "", ())
    found = {
        "other_format": stored_size(data) is None,
        "rotated": orientation(data) != 1,
        "cmyk": image.mode == "CMYK",
        "gray": image.mode in GRAY_MODES,
        "animated": bool(getattr(image, "is_animated", False)),
        "wrong_extension": extension in KNOWN_EXTENSIONS and extension not in expected,
    }
    return tuple(fault for fault, there in found.items() if there)


def _looks(image: Image.Image) -> Looks | None:
    """Decodes all of the file, so that damage is found."""
    image.draft("L", (SIDE, SIDE))  # of a JPEG: only what the hash needs is computed
    image.load()
    return perceptual_hash(image.convert("L"))


def _converted(data: bytes, *, rotated: bool) -> bytes:
    """The first image of a file as RGB: a JPEG remains one, all else becomes a PNG."""
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    kind = "JPEG" if image.format in ("JPEG", "MPO") else "PNG"
    image.load()
    pixels = (ImageOps.exif_transpose(image) if rotated else image).convert("RGB")
    out = io.BytesIO()
    options = {"quality": JPEG_QUALITY, "subsampling": 0} if kind == "JPEG" else {}
    pixels.save(out, kind, **options)
    return out.getvalue()
