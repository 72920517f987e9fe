"""Image files: their names and formats, and decoded images as RGB of 8 bits.

One list of formats holds for training, evaluation, prediction and `prepare`, and one rule for every
mode of Pillow. `prepare`, prediction, thumbnails and hashes decode with Pillow and use it; training
and evaluation decode with TensorFlow, which does the same for the formats that it knows, and the
others with Pillow.

- 16 bits keep their upper 8, as libpng and TensorFlow do it; n bits of a sensor in a file that says
  so keep the upper 8 of n. (Pillow's own conversion makes all levels above 255 white.)
- Transparency is dropped, not composited: the colour remains, also where nothing is seen of it.
  Colours that are stored multiplied by their opacity are divided by it.
- CMYK is inverted if, and only if, it is in a JPEG with Adobe's marker, as libjpeg says.
- Colour profiles and gamma are not applied.
- Numbers whose range the file does not state have no value in 8 bits: ValueError for floats,
  integers of 32 bits, and signed ones.
"""

import collections
import io
import os
import re
import struct
from collections.abc import Callable
from pathlib import PurePath
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageChops, ImageFile

# By the format as Pillow names it; the first extension is the usual one. No other formats are
# decoded: for EPS Pillow would start a program, and some of its plugins are hardly used.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".mpo", ".jpg", ".jpeg"),  # a JPEG with further images behind it
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "DIB": (".dib",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif", ".avifs"),
    "JPEG2000": (".jp2", ".j2k", ".jpf", ".jpx", ".j2c", ".jpc"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
# For Image.open, to which an MPO is a JPEG.
OPENED = tuple(name for name in FORMATS if name != "MPO")

EXTENSIONS = tuple(dict.fromkeys(one for group in FORMATS.values() for one in group))
# Images that nothing here decodes: they are named, not passed over as other files are.
UNKNOWN_EXTENSIONS = (".heic", ".heif", ".jxl", ".psd", ".svg", ".eps", ".ico", ".tga", ".dng")

# Files and folders that operating systems put among others', in lower case.
_OF_SYSTEMS = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin")


def extension(name: str) -> str:
    """The extension of a file's name in lower case, with its dot; "" if there is none."""
    return os.path.splitext(name)[1].lower()


def is_image_name(name: str) -> bool:
    """Returns whether a file of this name is an image that can be decoded, and is not hidden."""
    return extension(name) in EXTENSIONS and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether a file or a folder is not the user's own: hidden, or of an operating system."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


HIDDEN = "hidden, by a dot before the name"  # reasons
IN_HIDDEN = "in hidden folders, or those of an operating system"
NOT_NAMED = "without the extension of an image"
NO_FILE = "not regular files (pipes, or links to nothing)"


class PassedOver:
    """Files of a folder that are not read, by the reason."""

    def __init__(self) -> None:
        self._paths: dict[str, list[str]] = collections.defaultdict(list)

    def add_named(self, path: str) -> None:
        """Adds a file, unless it is an operating system's, by the reason that its name gives."""
        name = PurePath(path).name
        if is_hidden(name):
            if extension(name) in (*EXTENSIONS, *UNKNOWN_EXTENSIONS):
                self.add(HIDDEN, path)
        elif extension(name) in UNKNOWN_EXTENSIONS:
            kind = f"in the format {extension(name)}, which is not read (convert to JPEG or PNG)"
            self.add(kind, path)
        else:
            self.add(NOT_NAMED, path)

    def add(self, reason: str, *paths: str) -> None:
        """`reason` follows on "passed over 3 files: "."""
        if paths:
            self._paths[reason] += paths

    def clear(self) -> None:
        """Forgets them, before a folder is read in another way."""
        self._paths.clear()

    def notes(self) -> tuple[str, ...]:
        """A line for each reason: how many files, why, and an example."""
        return tuple(
            f"passed over {len(paths):,} file{'s' * (len(paths) > 1)}: {reason}, such as {paths[0]}"
            for reason, paths in self._paths.items()
        )


_EXIF_ORIENTATION = 274
_TIFF_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
_EXIF_HEADS = re.compile(rb"(Exif\0\0){0,2}")
_WHOLE_NUMBERS = {3: "H", 4: "I", 8: "h", 9: "i"}  # by their type in TIFF 6.0: SHORT, LONG, signed
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Of TIFF 6.0.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _UNSIGNED, _UNDEFINED = 0, 1, 4


_PNG = b"\x89PNG\r\n\x1a\n"
# Chunks that are not critical and yet read: transparency, orientation, frames.
_READ_CHUNKS = (b"tRNS", b"eXIf", b"acTL", b"fcTL", b"fdAT")


def open_image(file: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """An image file, opened by Pillow in one of the formats above; it raises what Pillow does.

    Of a PNG only what its pixels and orientation depend on: Pillow refuses files whose texts or
    colour profile are large, and libpng, with which training decodes, passes over them.
    """
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as stream:
            plain = _plain_png(stream)
    else:
        plain = _plain_png(file)
    return Image.open(plain or file, formats=OPENED)


def _plain_png(file: BinaryIO) -> BinaryIO | None:
    """A PNG without what nothing here reads; None of another format, whose file is at its start."""
    if file.read(len(_PNG)) == _PNG:
        return io.BytesIO(_PNG + _without_notes(file.read()))
    file.seek(0)
    return None


def _without_notes(chunks: bytes) -> bytes:
    """Chunks of a PNG (its specification, section 5.3) without those that nothing here reads."""
    kept, at = [], 0
    while at + 8 <= len(chunks):
        length, name = struct.unpack_from(">I4s", chunks, at)
        end = at + 12 + length if name != b"IEND" else len(chunks)
        if not name[:1].islower() or name in _READ_CHUNKS:
            kept.append(chunks[at:end])
        at = end
    return b"".join(kept)


class UnknownRangeError(ValueError):
    """Pixels that have no value in 8 bits."""


def rgb(image: Image.Image, *, upright: bool = False) -> Image.Image:
    """An image of any mode as "RGB"; with `upright` turned as its EXIF data say.

    Pillow's decoders raise exceptions of any type for damaged images.
    """
    _decode(image)
    sample = _tags(image).get(_SAMPLE_FORMAT, _UNSIGNED)
    is_signed = not {_UNSIGNED, _UNDEFINED}.issuperset(
        sample if type(sample) is tuple else [sample]
    )
    is_wide = image.mode == "I" and image.format != "PPM"  # which Pillow scales to 16 bits
    if image.mode not in _TO_RGB or is_signed or is_wide:
        raise UnknownRangeError(
            f"pixels of Pillow's mode {image.mode}{', signed' * is_signed} have no known range"
        )
    pixels = _TO_RGB[image.mode](image)
    turn = _TURNS.get(orientation(image.info.get("exif") or b"")) if upright else None
    return pixels if turn is None else pixels.transpose(turn)


def _decode(image: Image.Image) -> None:
    """Loads the pixels, without the mapping of a file that is known by name.

    Pillow maps uncompressed TIFFs with the sides of the turned image, which shears those that their
    orientation turns by 90 degrees.
    """
    if not isinstance(image, ImageFile.ImageFile):  # made in memory
        return
    name, image.filename = image.filename, ""
    try:
        image.load()
    finally:
        image.filename = name


def orientation(exif: bytes) -> int:
    """The camera's note, 1..8 (Exif 2.3, tag 274); 1, upright as stored, where none can be read.

    Only Exif data count, not what XMP or a PNG's text says, as in browsers. Pillow reads the same,
    at a thirtieth of the rate.
    """
    head = _EXIF_HEADS.match(exif)
    tiff = exif[head.end() :] if head else exif
    try:
        order = _TIFF_BYTE_ORDERS[tiff[:2]]
        # The entries of the first directory (TIFF 6.0, section 2).
        directory = struct.unpack_from(order + "I", tiff, 4)[0]
        num_entries = struct.unpack_from(order + "H", tiff, directory)[0]
        for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == _EXIF_ORIENTATION and count == 1:
                value = struct.unpack_from(order + _WHOLE_NUMBERS[kind], tiff, entry + 8)[0]
                return value if 1 <= value <= 8 else 1
    except (struct.error, IndexError, KeyError):
        pass
    return 1


def _tags(image: Image.Image) -> dict[int, object]:
    """The first directory of a TIFF, by tag; {} of other formats."""
    return dict(getattr(image, "tag_v2", {})) if image.format == "TIFF" else {}


def _colour(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _cmyk(image: Image.Image) -> Image.Image:
    # Pillow inverts all JPEGs.
    plain = image.format == "JPEG" and "adobe" not in image.info
    return _colour(ImageChops.invert(image) if plain else image)


def _sixteen_bits(image: Image.Image) -> Image.Image:
    tags = _tags(image)
    bits = tags.get(_BITS_PER_SAMPLE, 16)
    bits = bits[0] if isinstance(bits, tuple) else bits
    assert isinstance(bits, int)
    upper = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    # Pillow inverts the others of this kind, those of up to 8 bits.
    gray = 255 - upper if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else upper
    return Image.fromarray(gray).convert("RGB")


_TO_RGB: dict[str, Callable[[Image.Image], Image.Image]] = {
    **dict.fromkeys(("1", "L", "LA", "RGB", "RGBA", "RGBX", "YCbCr", "LAB", "HSV"), _colour),
    **dict.fromkeys(("P", "PA", "RGBa"), lambda image: _colour(image.convert("RGBA"))),
    "La": lambda image: _colour(image.convert("LA")),
    "CMYK": _cmyk,
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), _sixteen_bits),
    "I": lambda image: Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB"),
}
