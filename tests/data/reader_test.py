import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.reader import READ_EXAMPLES, Reader, orientation, stored_size
from vit_jax.data.source import Example

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
def test_size(encode, file_format, options):
    assert stored_size(encode(PIXELS, file_format, **options)) == (37, 53)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_no_size_in_a_part_of_the_header(encode, file_format):
    data = encode(PIXELS, file_format)
    for num_bytes in range(10):
        assert stored_size(data[:num_bytes]) is None


def test_random_bytes_behind_a_signature_do_not_raise():
    rng = np.random.default_rng(0)
    for signature in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF....WEBPVP8X"):
        for num_bytes in range(0, 200, 3):
            stored_size(signature + rng.bytes(num_bytes))


def noted(value, file_format, **options):
    exif = Image.Exif()
    exif[0x010F] = "A maker"
    exif[0x0112] = value
    file = io.BytesIO()
    image = Image.fromarray(np.zeros((8, 9, 3), np.uint8))
    image.save(file, file_format, exif=exif, **options)
    return file.getvalue()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_what_pillow_notes(file_format):
    for value in range(1, 9):
        assert orientation(noted(value, file_format)) == value


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_any_damage_is_upright_or_right(file_format):
    data = noted(6, file_format)
    assert orientation(data[:20]) == 1
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(data[: rng.integers(3, 150)])
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        assert 1 <= orientation(bytes(damaged)) <= 8


@pytest.mark.parametrize(
    ("num_bytes", "number"), [(10**5, READ_EXAMPLES), (9 * 10**6, 2), (10**8, 1), (None, 128)]
)
def test_few_large_images_are_read_at_once(list_source, num_bytes, number):
    examples = [] if num_bytes is None else [Example(bytes(num_bytes), (0,))]
    choose = lambda slots: (slots, np.zeros((len(slots), 2), np.int64))
    assert Reader(list_source(examples), choose, 10**8).examples_at_once(0) == number


def test_fill_bytes_before_a_jpeg_marker(encode):
    data = encode(PIXELS, "JPEG")
    assert stored_size(data[:2] + b"\xff\xff" + data[2:]) == (37, 53)


def test_a_bitmap_with_a_palette_is_left_to_pillow(encode):
    assert stored_size(encode(PIXELS[..., 0], "BMP")) is None
