"""Reads an image's size and EXIF orientation from its header, without decoding it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from vit_jax.data.source import Example

if TYPE_CHECKING:
    from vit_jax.data.host_tf import tf

# Start-of-frame markers: SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that no length follows: the fill byte, TEM, RST0..RST7 and SOI.
_JPEG_BARE = frozenset({0xFF, 0x01, *range(0xD0, 0xD9)})
_JPEG_SCAN = 0xDA
_WEBP_ANIMATION = 0x02
_EXIF_ORIENTATION = 274
_TIFF_BYTE_ORDERS = {b"II": "<", b"MM": ">"}


class Encoded(NamedTuple):
    """An image file and its header's contents. Scalars and a vector: tensors or plain values."""

    data: tf.Tensor | bytes
    size: tf.Tensor | tuple[int, int]  # int32 [2], height and width when shown upright
    orientation: tf.Tensor | int  # int32, EXIF: 1..8


UNDECODABLE = Encoded(b"", (0, 0), 1)


def encoded(example: Example, max_image_pixels: int) -> Encoded | str:
    """The example's image ready to be decoded; a reason why not, if its header gives one."""
    if example.fault:
        return example.fault
    data, orientation = example.image, example.orientation
    size = stored_size(data)
    if size is None:
        return (
            "not a JPEG, PNG, GIF, still WebP or true-colour BMP file"
            if data
            else "the file is empty"
        )
    if size[0] * size[1] > max_image_pixels:
        return f"{size[0]} x {size[1]} pixels exceed input.max_image_pixels={max_image_pixels}"
    return Encoded(data, size[::-1] if orientation >= 5 else size, orientation)


def stored_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) in pixels as stored; EXIF orientation is not applied.

    None if the header is damaged, or the file is not a JPEG, PNG, GIF, WebP or BMP. Also for
    two kinds that TensorFlow 2.21 takes but gets wrong: a BMP with a palette comes out in other
    colours, and an animated WebP damages the process's memory.
    """
    try:
        return _stored_size(data)
    except (struct.error, IndexError):  # the file ends inside its header
        return None


def _stored_size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
        return height, width
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        return height, width
    if data.startswith(b"BM"):
        width, height, _, bits_per_pixel = struct.unpack_from("<iiHH", data, 18)
        return (abs(height), width) if bits_per_pixel in (24, 32) else None
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    for marker, start, _ in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return height, width
    return None


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, length) of the content of each segment before the pixels, in bytes.

    ITU T.81, section B.1. IndexError or struct.error where the file ends inside one.
    """
    position = 2
    while data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _JPEG_SCAN:
            return
        if marker in _JPEG_BARE:
            position += 1 if marker == 0xFF else 2
            continue
        length = struct.unpack_from(">H", data, position + 2)[0]
        yield marker, position + 4, length - 2
        position += 2 + length


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The three kinds of first chunk (RFC 9649, sections 2.5 to 2.7)."""
    kind = data[12:16]
    if kind == b"VP8X" and not data[20] & _WEBP_ANIMATION:
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return height, width
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return ((bits >> 14) & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    return None


def orientation(data: bytes) -> int:
    """The camera's note, 1..8 (Exif 2.3, tag 274); 1, upright as stored, where none can be read."""
    try:
        return _orientation(_tiff_block(data))
    except (struct.error, IndexError, KeyError):
        return 1


def _orientation(tiff: bytes) -> int:
    """Looks through the entries of the first directory (TIFF 6.0, section 2)."""
    order = _TIFF_BYTE_ORDERS[tiff[:2]]
    directory = struct.unpack_from(order + "I", tiff, 4)[0]
    num_entries = struct.unpack_from(order + "H", tiff, directory)[0]
    for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
        tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _EXIF_ORIENTATION:
            return value if 1 <= value <= 8 else 1
    return 1


def _tiff_block(data: bytes) -> bytes:
    """The file's Exif data, from where its format keeps them; empty if there are none."""
    if data.startswith(b"\xff\xd8\xff"):
        for marker, start, length in jpeg_segments(data):
            if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
                return data[start + 6 : start + length]
    elif data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _chunk(data, b"eXIf", first=8, name_at=4, head=">I4x", around_bytes=12)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _chunk(data, b"EXIF", first=12, name_at=0, head="<4xI", around_bytes=8)
    return b""


def _chunk(
    data: bytes, name: bytes, *, first: int, name_at: int, head: str, around_bytes: int
) -> bytes:
    """The content of the chunk called `name`, of a file made of chunks from byte `first` on.

    `head` unpacks a chunk's length from its first 8 bytes, `name_at` is its name's place there, and
    `around_bytes` is the size of a chunk without its content.
    """
    while first < len(data):
        (length,) = struct.unpack_from(head, data, first)
        if data[first + name_at : first + name_at + 4] == name:
            return data[first + 8 : first + 8 + length]
        first += length + around_bytes
        first += first % 2 if head.startswith("<") else 0  # RIFF pads to even lengths
    return b""
