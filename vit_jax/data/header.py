"""The size of an image from its file's header: known before a decoder allocates anything."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Start-of-frame markers: SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that no length follows: the fill byte, TEM, RST0..RST7 and SOI.
_JPEG_BARE = frozenset({0xFF, 0x01, *range(0xD0, 0xD9)})
_JPEG_SCAN = 0xDA
_WEBP_ANIMATION = 0x02


def stored_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) in pixels as stored; EXIF orientation is not applied.

    None if the header is damaged, or not that of a JPEG, PNG, GIF, WebP or BMP file. So it is for
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
