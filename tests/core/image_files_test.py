import io
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.messages import refused
from vit_jax.core.image_files import (
    _TO_RGB,
    EXTENSIONS,
    FORMATS,
    OPENED,
    UnknownRangeError,
    is_image_name,
    open_image,
    orientation,
    rgb,
)
from vit_jax.data.host_tf import tf
from vit_jax.data.ops.decode import decode_image
from vit_jax.data.reader import Encoded, encoded
from vit_jax.data.reader import orientation as orientation_of_file
from vit_jax.data.source import Example
from vit_jax.draw import html_page
from vit_jax.models import Preprocess, images
from vit_jax.tools.prepare import faults
from vit_jax.tools.prepare.collection import ImageRow
from vit_jax.tools.prepare.faults import check, perceptual_hashes


def test_pillow_knows_the_extensions_of_each_format():
    Image.init()
    registered = Image.registered_extensions()
    for name, extensions in FORMATS.items():
        for one in extensions:
            # Multi-picture JPEGs are named as JPEGs; Pillow knows a BMP without its head apart.
            assert registered[one] in {name, "JPEG", "BMP", "DIB"}, one
    assert Image.OPEN.keys() >= set(OPENED)
    assert {".jfif", ".tif", ".jpe"} <= set(EXTENSIONS)


def test_the_page_has_a_row_for_each_format():
    page = (Path(__file__).parents[2] / "docs" / "own_images.md").read_text()
    rows = page.replace(" ", "").upper().splitlines()
    for name in set(OPENED) - {"DIB"}:  # a BMP
        (row,) = [row for row in rows if re.match(rf"\|(.*,)?{name}\b", row)]
        assert row.count("|READ") == 2, name


def test_names_of_images():
    for name in ("a.JPG", "a.b.jfif", "x.TIFF", "ä.jp2"):
        assert is_image_name(name), name
    for name in (".a.jpg", "._a.jpg", ".DS_Store", "Thumbs.db", "a.txt", "jpg", "__MACOSX"):
        assert not is_image_name(name), name


RNG = np.random.default_rng(0)
HEIGHT, WIDTH = 12, 10
GRAY = RNG.integers(0, 256, (HEIGHT, WIDTH)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
GRAY_16 = RNG.integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
COLOUR_16 = RNG.integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(np.uint16)
ALPHA = RNG.integers(0, 256, (HEIGHT, WIDTH)).astype(np.uint8)
EXIF = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # turn to the right
# libjpegs differ by two levels, and round CMYK differently.
JPEG_LEVELS = 3


def three(gray):
    return np.repeat(np.asarray(gray, np.uint8)[..., None], 3, axis=2)


def turned(pixels):
    return np.rot90(pixels, -1)


def png(pixels, bits, colour, *chunks):
    """A PNG of values [H, W, C]; colour: 0 gray, 2 RGB, 3 palette, 4 and 6 with alpha."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    rows = pixels.reshape(len(pixels), -1).astype(">u2" if bits == 16 else np.uint8)
    if bits < 8:
        single = np.unpackbits(rows[..., None], axis=2)[..., 8 - bits :]
        rows = np.packbits(single.reshape(len(rows), -1), axis=1)
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], bits, colour, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(pixels, bits, photometric=1, **tags):
    """A TIFF of one strip, little-endian. sample_format: 1 unsigned, 2 signed, 3 floats."""
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) and pixels.ndim == 3 else 1
    data = pixels if isinstance(pixels, bytes) else pixels.tobytes()
    fields = {
        256: [WIDTH], 257: [HEIGHT], 258: [bits] * channels, 259: [1], 262: [photometric],
        273: [0], 277: [channels], 278: [HEIGHT], 279: [len(data)],
        **({339: [tags["sample_format"]] * channels} if "sample_format" in tags else {}),
        **({338: [tags["extra"]]} if "extra" in tags else {}),
        **({274: [tags["orientation"]]} if "orientation" in tags else {}),
    }  # fmt: skip
    behind, extra = 8 + 2 + 12 * len(fields) + 4, b""
    long = {tag: len(values) > 2 for tag, values in fields.items()}
    fields[273] = [behind + sum(2 * len(v) for tag, v in fields.items() if long[tag])]
    entries = b""
    for tag, values in sorted(fields.items()):
        packed = struct.pack(f"<{len(values)}H", *values)
        if long[tag]:
            packed, extra = struct.pack("<I", behind + len(extra)), extra + packed
        entries += struct.pack("<HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    head = b"II" + struct.pack("<HIH", 42, 8, len(fields))
    return head + entries + b"\0\0\0\0" + extra + data


def twelve_bits(values):
    """Rows of values below 4096, two in three bytes."""
    first, second = values.reshape(-1, 2).T.astype(int)
    return (
        np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1)
        .astype(np.uint8)
        .tobytes()
    )


def saved(image, file_format, **options):
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.save(out, file_format, **options)
    return out.getvalue()


def without_adobe(jpeg):
    start = jpeg.index(b"\xff\xee")
    return jpeg[:start] + jpeg[start + 2 + struct.unpack_from(">H", jpeg, start + 2)[0] :]


def small_frame():
    """A GIF whose first frame covers a part of the image."""
    gif = bytearray(saved(Image.fromarray(COLOUR).quantize(16), "GIF"))
    gif[6:10] = struct.pack("<HH", WIDTH + 4, HEIGHT + 3)
    return bytes(gif)


RED = np.zeros((HEIGHT, WIDTH, 3), np.uint8) + np.uint8([250, 20, 30])
PALETTE = RNG.integers(0, 256, (4, 3)).astype(np.uint8)
INDEX = RNG.integers(0, 4, (HEIGHT, WIDTH))
PLTE = (b"PLTE", PALETTE.tobytes())
CMYK = np.zeros((HEIGHT, WIDTH, 4), np.uint8) + np.uint8([200, 100, 50, 20])
_CYAN = np.round((255.0 - CMYK[..., :3]) * (255.0 - CMYK[..., 3:]) / 255)
with_alpha = lambda pixels, alpha: np.concatenate([pixels, alpha[..., None]], 2)

BETWEEN = saved(Image.fromarray(RED), "JPEG", quality=100)  # its first segment ends at byte 20

# Name -> (a file, its pixels).
FILES = {
    "gray 1.png": (png(GRAY >> 7, 1, 0), three((GRAY >> 7) * 255)),
    "gray 8.png": (png(GRAY, 8, 0), three(GRAY)),
    "gray 16.png": (png(GRAY_16, 16, 0), three(GRAY_16 >> 8)),
    "gray 16, turned.png": (png(GRAY_16, 16, 0, (b"eXIf", EXIF)), turned(three(GRAY_16 >> 8))),
    "gray 16, one transparent.png": (
        png(GRAY_16, 16, 0, (b"tRNS", GRAY_16[:1, 0].astype(">u2").tobytes())),
        three(GRAY_16 >> 8),
    ),
    "gray and alpha 16.png": (
        png(np.stack([GRAY_16, GRAY_16[::-1]], 2), 16, 4, (b"eXIf", EXIF)),
        turned(three(GRAY_16 >> 8)),
    ),
    "RGB 16, turned.png": (png(COLOUR_16, 16, 2, (b"eXIf", EXIF)), turned(COLOUR_16 >> 8)),
    "RGBA 8.png": (png(with_alpha(COLOUR, ALPHA), 8, 6), COLOUR),
    "palette, transparent.png": (
        png(INDEX, 8, 3, PLTE, (b"tRNS", bytes([0, 128, 255]))),
        PALETTE[INDEX],
    ),
    "notes in text.png": (
        png(COLOUR, 8, 2, (b"tEXt", b"Raw profile type exif\0\nexif\n8\n" + EXIF.hex().encode())),
        COLOUR,
    ),
    **{
        f"large {kind}.png": (
            png(COLOUR, 8, 2, (kind.encode(), b"note\0\0" + zlib.compress(bytes(3_000_000)))),
            COLOUR,
        )
        for kind in ("iCCP", "zTXt")
    },
    "damaged text.png": (
        png(COLOUR, 8, 2, (b"tEXt", b"note\0text")).replace(b"note\0text", b"note\0toxt"),
        COLOUR,
    ),
    "palette.gif": (saved(Image.fromarray(PALETTE[INDEX]), "GIF"), PALETTE[INDEX]),
    "small frame.gif": (small_frame(), np.zeros((0, 0, 3))),
    "palette.bmp": (
        saved(Image.fromarray(COLOUR).quantize(16), "BMP"),
        np.asarray(Image.fromarray(COLOUR).quantize(16).convert("RGB")),
    ),
    "lossless.webp": (saved(Image.fromarray(COLOUR), "WEBP", lossless=True), COLOUR),
    "turned.webp": (
        saved(Image.fromarray(COLOUR), "WEBP", lossless=True, exif=EXIF),
        turned(COLOUR),
    ),
    "gray.jpg": (saved(Image.fromarray(three(GRAY)[:, :, 0] * 0 + 90), "JPEG"), RED * 0 + 90),
    "RGB.jpg": (saved(Image.fromarray(RED), "JPEG", quality=100), RED),
    "turned.jpg": (
        saved(Image.fromarray(RED), "JPEG", quality=100, exif=b"Exif\0\0" + EXIF),
        turned(RED),
    ),
    "bytes between segments.jpg": (BETWEEN[:20] + bytes(20) + BETWEEN[20:], RED),
    "CMYK of Adobe.jpg": (saved(Image.fromarray(CMYK, "CMYK"), "JPEG", quality=100), _CYAN),
    "CMYK.jpg": (
        without_adobe(saved(Image.fromarray(255 - CMYK, "CMYK"), "JPEG", quality=100)),
        _CYAN,
    ),
    "gray 8.tif": (tiff(GRAY, 8), three(GRAY)),
    "gray 8, white is zero.tif": (tiff(GRAY, 8, 0), three(255 - GRAY)),
    "gray 12.tif": (tiff(twelve_bits(GRAY_16 >> 4), 12), three(GRAY_16 >> 8)),
    "gray 16.tif": (tiff(GRAY_16, 16), three(GRAY_16 >> 8)),
    "gray 16, white is zero.tif": (tiff(GRAY_16, 16, 0), three(255 - (GRAY_16 >> 8))),
    "gray 16, big-endian.tif": (
        saved(Image.frombytes("I;16B", (WIDTH, HEIGHT), GRAY_16.astype(">u2").tobytes()), "TIFF"),
        three(GRAY_16 >> 8),
    ),
    "CMYK, turned.tif": (tiff(CMYK, 8, 5, orientation=6), turned(_CYAN)),
    "RGB 16.tif": (tiff(COLOUR_16, 16, 2), COLOUR_16 >> 8),
    "LAB.tif": (
        saved(Image.fromarray(RED).convert("LAB"), "TIFF"),
        np.asarray(Image.fromarray(RED).convert("LAB").convert("RGB")),
    ),
    "gray 16.jp2": (saved(Image.fromarray(GRAY_16), "JPEG2000"), three(GRAY_16 >> 8)),
    "turned.avif": (saved(Image.fromarray(RED), "AVIF", quality=100, exif=EXIF), turned(RED)),
    "gray 16.pgm": (
        b"P5 %d %d 65535\n" % (WIDTH, HEIGHT) + GRAY_16.astype(">u2").tobytes(),
        three(GRAY_16 >> 8),
    ),
}
REFUSED = {
    "float.tif": tiff(GRAY.astype("<f4") / 255, 32, sample_format=3),
    "int32.tif": tiff(GRAY.astype("<i4"), 32, sample_format=2),
    "int16.tif": tiff(GRAY.astype("<i2"), 16, sample_format=2),
    "int8.tif": tiff(GRAY.astype("i1"), 8, sample_format=2),
}


def levels(name):
    return JPEG_LEVELS if name.endswith((".jpg", ".avif")) or "CMYK" in name else 0


def opened(data):
    return open_image(io.BytesIO(data))


def trained_on(data, *, folder):
    """What training sees of a file, in a folder of images or in a record."""
    image = encoded(Example(data, (0,), orientation_of_file(data) if folder else 1), 10**9)
    assert isinstance(image, Encoded), image
    return decode_image(Encoded(*map(tf.constant, image))).numpy()


def prepared(name, data):
    policy = faults.policy(["rotated:convert"], {})
    return check(ImageRow(name), data, policy, 10**9)


@pytest.mark.parametrize("name", [name for name in FILES if name != "small frame.gif"])
def test_all_that_decode_agree_with_the_table(name, tmp_path):
    data, expected = FILES[name]
    near = lambda pixels: np.testing.assert_allclose(
        np.asarray(pixels, int), np.asarray(expected, int), atol=levels(name)
    )
    near(rgb(opened(data), upright=True))
    as_is = Preprocess(expected.shape[:2], None, None, (0.0,) * 3, (1.0 / 255,) * 3)
    near(np.rint(images.load(opened(data), as_is)))
    # By name, as Pillow then maps the pixels of some files instead of reading them.
    (tmp_path / name).write_bytes(data)
    near(np.rint(images.load(tmp_path / name, as_is)))
    near(rgb(open_image(tmp_path / name), upright=True))
    near(trained_on(data, folder=True))
    row, stored = prepared(name, data)
    assert row.action in ("keep", "convert"), row.faults
    near(trained_on(stored, folder=False))
    near(rgb(opened(stored)))
    assert row.look == perceptual_hashes(rgb(opened(data)).convert("L"))[0]
    assert html_page.thumbnail_url(data, 32, upright=True)


def test_a_gif_with_a_small_first_frame_is_one_image():
    data, _ = FILES["small frame.gif"]
    expected = np.asarray(rgb(opened(data)))
    assert expected.shape == (HEIGHT + 3, WIDTH + 4, 3)
    np.testing.assert_array_equal(trained_on(data, folder=True), expected)
    row, stored = prepared("a.gif", data)
    assert "other_format" in row.faults
    np.testing.assert_array_equal(trained_on(stored, folder=False), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_ranges_are_refused(name):
    with refused("no known range", error=UnknownRangeError):
        rgb(opened(REFUSED[name]))
    assert prepared(name, REFUSED[name])[0].faults == ("unknown_range",)
    assert html_page.thumbnail_url(REFUSED[name], 32) is None


def test_every_mode_has_a_rule():
    assert set(Image.MODES) - {"F"} <= _TO_RGB.keys()  # floats are of no known range


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_only_exif_data_turn_an_image(file_format):
    head = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
    xmp = f'{head}xmlns:rdf="r"><rdf:Description tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    data = saved(Image.fromarray(COLOUR), file_format, xmp=xmp.encode())
    assert orientation_of_file(data) == 1
    assert rgb(opened(data), upright=True).size == (WIDTH, HEIGHT)
    assert orientation(b"Exif\0\0" + EXIF) == orientation(EXIF) == 6


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["1B", "3H", "9i", "4I2"])
@pytest.mark.parametrize("value", [6, 9])
def test_an_orientation_of_any_type_is_read_as_by_pillow(order, kind, value):
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 1)
    entry = struct.pack(f"{order}HHI", 274, int(kind[0]), int(kind[2:] or 1))
    content = struct.pack(order + kind[1], value).ljust(4, b"\0")
    exif = b"Exif\0\0" + head + entry + content + bytes(12)
    data = saved(Image.fromarray(COLOUR), "JPEG", exif=exif)
    expected = ImageOps.exif_transpose(opened(data))
    np.testing.assert_array_equal(rgb(opened(data), upright=True), expected)
    assert (orientation_of_file(data) == 6) == (expected.size == (HEIGHT, WIDTH))


def test_images_of_one_outline_are_no_copies():
    """White outlines were all that was left of 16 bits when they were clipped."""
    disc = np.hypot(*np.mgrid[-32:32, -32:32]) < 24
    looks = set()
    for seed in range(11):
        content = np.kron(np.random.default_rng(seed).random((8, 8)), np.ones((8, 8)))
        data = png(np.where(disc, 2000 + content * 60000, 0).astype(int), 16, 0)
        looks.add(prepared("a.png", data)[0].look)
    assert len(looks) == 11
