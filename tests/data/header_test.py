from collections.abc import Callable

import numpy as np
import pytest

from vit_jax.data.header import stored_size

PIXELS = np.zeros((37, 53, 3), np.uint8)


@pytest.mark.parametrize(
    ("file_format", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0" + b"\xff\xc0" * 50}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
    ],
)
def test_size(encode: Callable[..., bytes], file_format: str, options: dict) -> None:
    assert stored_size(encode(PIXELS, file_format, **options)) == (37, 53)


def test_fill_bytes_before_a_jpeg_marker(encode: Callable[..., bytes]) -> None:
    data = encode(PIXELS, "JPEG")
    assert stored_size(data[:2] + b"\xff\xff" + data[2:]) == (37, 53)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_no_size_in_a_part_of_the_header(encode: Callable[..., bytes], file_format: str) -> None:
    data = encode(PIXELS, file_format)
    for num_bytes in range(10):
        assert stored_size(data[:num_bytes]) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8\xff", b"not an image", b"BM", b"RIFF"])
def test_no_size_of_what_is_no_image(data: bytes) -> None:
    assert stored_size(data) is None


def test_random_bytes_behind_a_signature_do_not_raise() -> None:
    rng = np.random.default_rng(0)
    for signature in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF....WEBPVP8X"):
        for num_bytes in range(0, 200, 3):
            stored_size(signature + rng.bytes(num_bytes))


def test_a_bitmap_with_a_palette_is_refused(encode: Callable[..., bytes]) -> None:
    assert stored_size(encode(PIXELS[..., 0], "BMP")) is None
