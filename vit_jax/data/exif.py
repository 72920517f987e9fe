"""The orientation that a camera noted in an image file (Exif 2.3, tag 274)."""

from __future__ import annotations

import struct

from vit_jax.data.header import jpeg_segments

_ORIENTATION = 274
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}


def orientation(data: bytes) -> int:
    """1..8; 1 (upright as stored) where nothing is noted, or nothing that can be read."""
    try:
        return _orientation(_tiff_block(data))
    except (struct.error, IndexError, KeyError):
        return 1


def _orientation(tiff: bytes) -> int:
    """Looks through the entries of the first directory (TIFF 6.0, section 2)."""
    order = _BYTE_ORDERS[tiff[:2]]
    directory = struct.unpack_from(order + "I", tiff, 4)[0]
    num_entries = struct.unpack_from(order + "H", tiff, directory)[0]
    for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
        tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION:
            return value if 1 <= value <= 8 else 1
    return 1


def _tiff_block(data: bytes) -> bytes:
    """Where each file format keeps its Exif; empty if there is none."""
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
    `around_bytes` are those of a chunk outside its content.
    """
    while first < len(data):
        (length,) = struct.unpack_from(head, data, first)
        if data[first + name_at : first + name_at + 4] == name:
            return data[first + 8 : first + 8 + length]
        first += length + around_bytes
        first += first % 2 if head.startswith("<") else 0  # RIFF pads to even lengths
    return b""
