import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.header import orientation


def noted(value: int, file_format: str, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "A maker"
    exif[0x0112] = value
    file = io.BytesIO()
    image = Image.fromarray(np.zeros((8, 9, 3), np.uint8))
    image.save(file, file_format, exif=exif, **options)
    return file.getvalue()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", range(1, 9))
def test_what_pillow_notes(file_format: str, value: int) -> None:
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
def test_nothing_noted(data: bytes) -> None:
    assert orientation(data) == 1
