"""Bad or unusual images."""

import io
import random
import struct
import zlib

from PIL import Image

from tests.tools.prepare.conftest import jpeg

KEPT = "keep"
JPEG = jpeg(1)


def encoded(kind, mode="RGB", size=(40, 30), **options):
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


def animated(kind):
    out = io.BytesIO()
    first, *others = (Image.new("RGB", (40, 30), colour) for colour in ("red", "lime", "blue"))
    first.save(out, kind, save_all=True, append_images=others)
    return out.getvalue()


def chunk(name, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, *, colour=2, depth=8, pixels=None, extra=b""):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    if pixels is None:
        samples = {0: 1, 2: 3, 6: 4}[colour] * depth // 8
        pixels = zlib.compress(bytes((width * samples + 1) * height), level=1)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
        + (chunk(b"IDAT", pixels) if pixels else b"") + chunk(b"IEND", b"")
    )  # fmt: skip


def jpeg_of_size(height, width):
    """A JPEG that claims this size."""
    data = jpeg(1)
    frame = data.index(b"\xff\xc0")
    return data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]


def exif(orientation):
    tags = Image.Exif()
    tags[274] = orientation
    return tags


def scrambled(data):
    """The image, damaged in its second half."""
    numbers, damaged = random.Random(1), bytearray(data)
    for _ in range(20):
        damaged[numbers.randrange(len(data) // 2, len(data) - 2)] = numbers.randrange(255)
    return bytes(damaged)


def palette_bmp():
    out = io.BytesIO()
    Image.open(io.BytesIO(JPEG)).quantize(16).save(out, "BMP")
    return out.getvalue()


ZEROS = zlib.compress(bytes(2**28), level=1)  # 256 MiB; every worker imports this file
GIF = encoded("GIF", "P")
WEBP = encoded("WEBP")
BMP = encoded("BMP")
TIFF = encoded("TIFF")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) print\n"

# Name, with the extension -> (bytes, action and faults).
IMAGES = {
    "empty.jpg": (b"", "set_aside empty"),
    "a page of the web.jpg": (b"<html><body>404</body></html>", "set_aside unreadable"),
    "zeros.jpg": (bytes(10_000), "set_aside unreadable"),
    "text.png": (b"\x89PNG\r\n\x1a\nno chunks", "set_aside unreadable"),
    "drawing.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "set_aside unreadable"),
    "program.eps": (EPS, "set_aside unreadable"),
    "program.jpg": (EPS, "set_aside unreadable"),
    "document.pdf": (b"%PDF-1.4\n%%EOF", "set_aside unreadable"),
    "icon.ico": (encoded("ICO", size=(32, 32)), "set_aside unreadable"),
    "only the first bytes.jpg": (b"\xff\xd8\xff", "set_aside unreadable"),
    "only the header.jpg": (JPEG[: JPEG.index(b"\xff\xda")], "set_aside (unreadable|truncated)"),
    "nine tenths.jpg": (JPEG[: len(JPEG) * 9 // 10], "set_aside truncated"),
    "without an end.jpg": (JPEG[:-2], "set_aside truncated"),
    "garbage behind.jpg": (JPEG + b"garbage" * 1000, KEPT),
    "another behind.jpg": (JPEG + jpeg(2), KEPT),
    "scrambled pixels.jpg": (scrambled(JPEG), "set_aside truncated"),
    "claims 65535 x 65535.jpg": (jpeg_of_size(65535, 65535), "set_aside too_large"),
    "claims 8192 x 8192.jpg": (jpeg_of_size(8192, 8192), KEPT),  # they fill it with gray
    "no lines.jpg": (jpeg_of_size(0, 40), "set_aside unreadable"),
    "no columns.jpg": (jpeg_of_size(30, 0), "set_aside (unreadable|truncated)"),
    "of print.jpg": (encoded("JPEG", "CMYK"), "keep cmyk"),
    "gray.jpg": (encoded("JPEG", "L"), "keep gray"),
    "progressive.jpg": (jpeg(1, progressive=True), KEPT),
    "rotated.jpg": (jpeg(1, exif=exif(6)), "keep rotated"),
    "turned by nine.jpg": (jpeg(1, exif=exif(9)), KEPT),
    "one pixel.jpg": (jpeg(1, (1, 1)), KEPT),
    "very wide.jpg": (jpeg(1, (60_000, 1)), KEPT),
    "damaged exif.jpg": (
        JPEG[:2] + b"\xff\xe1\x00\x10Exif\0\0MM\0\x2a\xff\xff\xff\xff" + JPEG[2:], KEPT
    ),
    "half.png": (png(400, 300)[:100], "set_aside truncated"),
    "no pixels.png": (png(40, 30, pixels=b""), "set_aside (truncated|unreadable)"),
    "few pixels.png": (png(40, 30, pixels=zlib.compress(b"abc")), "set_aside truncated"),
    "no width.png": (png(0, 30), "set_aside unreadable"),
    "claims 100000 x 100000.png": (png(10**5, 10**5, pixels=b"x"), "set_aside too_large"),
    "claims 10000 x 9999.png": (png(10**4, 9999, pixels=b"xxxx"), "set_aside truncated"),
    "compressed 1000 times.png": (png(9000, 9000), KEPT),
    "a bomb of pixels.png": (png(40, 30, pixels=ZEROS), KEPT),
    # Its text is not read, as by libpng.
    "a bomb of text.png": (png(40, 30, extra=chunk(b"zTXt", b"k\0\0" + ZEROS)), KEPT),
    "a bomb of a profile.png": (
        png(40, 30, extra=chunk(b"iCCP", b"k\0\0" + ZEROS)), "set_aside unreadable|keep"
    ),
    "wrong checksum.png": (
        png(40, 30)[:29] + b"\0\0\0\0" + png(40, 30)[33:], "set_aside unreadable"
    ),
    "16 bits.png": (png(40, 30, depth=16), KEPT),
    "16 bits gray.png": (png(40, 30, colour=0, depth=16), "keep gray"),
    "palette.png": (encoded("PNG", "P"), KEPT),
    "palette and alpha.png": (encoded("PNG", "P", transparency=0), KEPT),
    "alpha.png": (png(40, 30, colour=6), KEPT),
    "two colours.png": (encoded("PNG", "1"), "keep gray"),
    "animated.png": (animated("PNG"), "keep animated"),
    "a PNG.jpg": (png(40, 30), "keep wrong_extension"),
    "a JPEG.png": (JPEG, "keep wrong_extension"),
    "a JPEG.txt": (JPEG, KEPT),
    "animated.gif": (animated("GIF"), "keep animated"),
    "half.gif": (GIF[: len(GIF) // 2], "set_aside (truncated|unreadable)"),
    "no frame.gif": (GIF[:13] + b";", "set_aside (truncated|unreadable)"),
    "claims 65535 x 65535.gif": (GIF[:6] + b"\xff" * 4 + GIF[10:], "set_aside too_large"),
    "half.webp": (WEBP[: len(WEBP) // 2], "set_aside (truncated|unreadable)"),
    "lossless.webp": (encoded("WEBP", lossless=True), KEPT),
    "animated.webp": (animated("WEBP"), "convert other_format animated"),
    "a sound.webp": (b"RIFF\x24\0\0\0WAVEfmt ", "set_aside unreadable"),
    "palette.bmp": (palette_bmp(), "convert other_format"),
    "claims 2 billion lines.bmp": (
        BMP[:22] + struct.pack("<i", 2**31 - 1) + BMP[26:], "set_aside too_large"
    ),
    "half.bmp": (BMP[: len(BMP) // 2], "set_aside truncated"),
    "tiff.tif": (TIFF, "convert other_format"),
    "half.tif": (TIFF[: len(TIFF) // 2], "set_aside (truncated|unreadable)"),
    "film.tif": (animated("TIFF"), "convert other_format animated"),
}  # fmt: skip
