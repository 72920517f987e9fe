"""Faults of images, the actions that a policy takes for them, and the check that finds them."""

import hashlib
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.core.arrays import encode
from vit_jax.core.errors import UserError, nearest
from vit_jax.core.image_files import (
    EXTENSIONS,
    FORMATS,
    UnknownRangeError,
    extension,
    open_image,
    rgb,
)
from vit_jax.core.image_files import orientation as exif_orientation
from vit_jax.data.reader import orientation, stored_size
from vit_jax.tools.prepare.collection import ImageRow

ACTIONS = KEEP, CONVERT, SET_ASIDE = "keep", "convert", "set_aside"


class Fault(NamedTuple):
    description: str  # in messages and reports
    action: str = SET_ASIDE  # the default
    choices: tuple[str, ...] = ()  # other possible actions


FAULTS: dict[str, Fault] = {
    "unsafe_name": Fault("the name is not UTF-8, or has a zero in it"),
    "outside": Fault("the path leads out of the archive, of the list's folder or of --images_root"),
    "no_file": Fault("a link to nothing or in an archive, a pipe or a device, not a file"),
    "hidden": Fault(
        "its name, or that of a folder that it is in, begins with a dot, or is of an operating "
        "system: __MACOSX, Thumbs.db"
    ),
    "nested": Fault("in a folder inside that of a class"),
    "beside_classes": Fault("beside the folders of the classes, not in one"),
    "missing": Fault("a list names a file that is not there"),
    "bad_entry": Fault("a line or row of a list that names no image"),
    "no_image": Fault("a sample without an image"),
    "other_image": Fault("its sample has an image before it, which is the one that counts"),
    "dotted_name": Fault(
        "its name has a further dot, and WebDataset ends the name of a sample at the first one: it "
        "is a part of a sample that has no image; put another character in the place of the dot"
    ),
    "same_member": Fault("another member before it in the sample has the same name"),
    "bad_label": Fault(
        "a label that is not a class or is there twice, or a weight outside of 0 to 1"
    ),
    "no_label": Fault("nothing says of which class it is"),
    "same_name": Fault("another image before it has the same name"),
    "empty": Fault("no bytes"),
    "unreadable": Fault("not an image, or its header is damaged"),
    "too_large": Fault("more pixels than --max_image_pixels, or a file of more than 256 MiB"),
    "truncated": Fault("the file ends too early, or its pixels are damaged"),
    "unknown_range": Fault(
        "pixels whose range is not known: floats, integers of 32 bits, or signed ones"
    ),
    "other_format": Fault(
        "of a format that training decodes more slowly: AVIF, a BMP with a palette, a TIFF",
        CONVERT,
        (SET_ASIDE,),
    ),
    "rotated": Fault("EXIF says that it has to be turned", KEEP, (CONVERT, SET_ASIDE)),
    "cmyk": Fault("for print: CMYK", KEEP, (CONVERT, SET_ASIDE)),
    "gray": Fault("shades of gray alone", KEEP, (CONVERT, SET_ASIDE)),
    "animated": Fault("several images in one file, of which the first counts", KEEP, (SET_ASIDE,)),
    "wrong_extension": Fault("named as another format than it is", KEEP, (SET_ASIDE,)),
}

Policy = Mapping[str, str]  # fault -> action

# Of people's own images: training honours the orientation in folders, and ignores it in data sets.
TURNED: Policy = {"rotated": CONVERT}


def policy(choices: Sequence[str], defaults: Policy) -> Policy:
    """Fault -> action: from `choices` ("gray:set_aside"), else `defaults`, else FAULTS."""
    chosen = {name: fault.action for name, fault in FAULTS.items()} | dict(defaults)
    possible = {
        f"{name}:{action}" for name, of in FAULTS.items() for action in (of.action, *of.choices)
    }
    for choice in choices:
        name, _, action = choice.partition(":")
        if choice not in possible:
            of_fault = [each for each in possible if each.startswith(f"{name}:")]
            cure = nearest(choice, of_fault) or nearest(name, FAULTS)
            raise UserError("is no action for a fault.", field="--policy", value=choice, cure=cure)
        chosen[name] = action
    return chosen


JPEG_QUALITY = 95  # of converted images, without chroma subsampling
GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

HASH_SIDE = 32  # pixels to which an image is reduced for its perceptual hash
HASH_FREQUENCIES = 8  # in each direction
# Rows 1 to 8 of the DCT-II, without 0, the mean.
_FREQUENCIES = np.arange(1, HASH_FREQUENCIES + 1)[:, None]
_COSINES = np.cos(np.pi * _FREQUENCIES * (2 * np.arange(HASH_SIDE) + 1) / (2 * HASH_SIDE)).astype(
    np.float32
)
# Standard deviation, of 255. Below it the shape of the image, not its content, decides the signs:
# one colour, a white page.
LEAST_CONTRAST = 4.0


def check(row: ImageRow, data: bytes, policy: Policy, max_pixels: int) -> tuple[ImageRow, bytes]:
    """The row with faults, action, size, format and hashes; the bytes to store. Never raises.

    They are those of a new file if the action is CONVERT. A JPEG is decoded at an eighth.
    """
    row = row._replace(sha256=hashlib.sha256(data).digest())
    if not data:
        return row._replace(faults=("empty",), action=policy["empty"]), data
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, checked here, and odd metadata
            return _decoded(row, data, policy, max_pixels)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _decoded(row: ImageRow, data: bytes, policy: Policy, max_pixels: int) -> tuple[ImageRow, bytes]:
    def bad(row: ImageRow, fault: str) -> tuple[ImageRow, bytes]:
        return row._replace(faults=(fault,), action=policy[fault]), data

    # Pillow's plugins raise exceptions of any type for damaged files.
    try:
        image = open_image(io.BytesIO(data))
        row = row._replace(width=image.width, height=image.height, format=image.format or "")
        if min(image.size) < 1:
            raise ValueError("no pixels")
    except Exception:
        return bad(row, "unreadable")
    if row.width * row.height > max_pixels:
        return bad(row, "too_large")
    try:
        faults = _visible_faults(image, data, row.name)
        image.draft("L", (HASH_SIDE, HASH_SIDE))  # of a JPEG only what the hash needs is computed
        image.load()  # all of the file, so that damage is noticed
        look, mirrored = perceptual_hashes(rgb(image).convert("L"))
        action = strictest(policy[fault] for fault in faults)
        stored = _converted(data) if action == CONVERT else data
    except UnknownRangeError:
        return bad(row, "unknown_range")
    except Exception:
        return bad(row, "truncated")
    return row._replace(faults=faults, action=action, look=look, mirrored=mirrored), stored


def strictest(actions: Iterable[str]) -> str:
    """The action to take when several faults ask for one."""
    wanted = set(actions)
    return next((action for action in (SET_ASIDE, CONVERT) if action in wanted), KEEP)


def _visible_faults(image: Image.Image, data: bytes, name: str) -> tuple[str, ...]:
    named, expected = extension(name), FORMATS[image.format or ""]
    is_usual = stored_size(data) is not None
    of_others = exif_orientation(image.info.get("exif") or b"")
    turned = orientation(data) if is_usual else of_others
    checks = {
        "other_format": not is_usual,
        "rotated": turned != 1,
        "cmyk": image.mode == "CMYK",
        "gray": image.mode in GRAY_MODES,
        "animated": bool(getattr(image, "is_animated", False)),
        "wrong_extension": named in EXTENSIONS and named not in expected,
    }
    return tuple(fault for fault, present in checks.items() if present)


def _converted(data: bytes) -> bytes:
    """The first image of a file as RGB, upright: a JPEG remains one, all else becomes a PNG."""
    image = open_image(io.BytesIO(data))
    kind = "JPEG" if image.format in ("JPEG", "MPO") else "PNG"
    pixels = rgb(image, upright=True)
    options = {"quality": JPEG_QUALITY, "subsampling": 0} if kind == "JPEG" else {}
    return encode(pixels, kind, **options)


def perceptual_hashes(gray: Image.Image) -> tuple[int, int] | tuple[None, None]:
    """64-bit hashes of an image of mode "L" and of its mirror image; None below LEAST_CONTRAST.

    Copies of other size or quality have nearly the same: the signs of the lowest frequencies of the
    cosine transform ("pHash"; Zauner, Implementation and benchmarking of perceptual image hash
    functions, 2010). The odd columns' signs would mirror it too, but for pixels that Pillow counts
    to their left neighbours: 67 % of mirrored copies would be found, instead of 100 %.
    """
    pixels, mirrored = (
        np.asarray(one.resize((HASH_SIDE, HASH_SIDE), Image.Resampling.BOX), np.float32)
        for one in (gray, gray.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    )
    if pixels.std() < LEAST_CONTRAST:
        return None, None
    return _signs(pixels), _signs(mirrored)


def _signs(pixels: np.ndarray) -> int:
    spectrum = (_COSINES @ pixels @ _COSINES.T).ravel()
    middle = np.partition(spectrum, (31, 32))[31:33].mean()  # of an even number, as np.median
    return int.from_bytes(np.packbits(spectrum > middle, bitorder="little").tobytes(), "little")
