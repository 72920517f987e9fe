import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.reader import orientation, stored_size

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
def test_a_file_that_is_not_an_image_has_no_size(data: bytes) -> None:
    assert stored_size(data) is None


def test_random_bytes_behind_a_signature_do_not_raise() -> None:
    rng = np.random.default_rng(0)
    for signature in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF....WEBPVP8X"):
        for num_bytes in range(0, 200, 3):
            stored_size(signature + rng.bytes(num_bytes))


def test_a_bitmap_with_a_palette_is_refused(encode: Callable[..., bytes]) -> None:
    assert stored_size(encode(PIXELS[..., 0], "BMP")) is None


def noted(value: int, file_format: str, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "A maker"
    exif[0x0112] = value
    file = io.BytesIO()
    image = Image.fromarray(np.zeros((8, 9, 3), np.uint8))
    image.save(file, file_format, exif=exif, **options)
    return file.getvalue()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_what_pillow_notes(file_format: str) -> None:
    for value in range(1, 9):
        assert orientation(noted(value, file_format)) == value


def test_big_endian() -> None:
    entry = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"
    exif = b"Exif\0\0MM\0*\x00\x00\x00\x08\x00\x01" + entry + b"\0\0\0\0"
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", exif=exif)
    assert orientation(file.getvalue()) == 6


@pytest.mark.parametrize("value", [0, 9, 1000])
def test_nonsense_is_upright(value: int) -> None:
    assert orientation(noted(value, "JPEG")) == 1


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_any_damage_is_upright_or_right(file_format: str) -> None:
    data = noted(6, file_format)
    assert orientation(data[:20]) == 1
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(data[: rng.integers(3, 150)])
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        assert 1 <= orientation(bytes(damaged)) <= 8


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"text"])
def test_images_without_orientation_are_upright(data: bytes) -> None:
    assert orientation(data) == 1
