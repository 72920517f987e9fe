import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax.data.host_tf import tf
from vit_jax.data.ops.decode import decode_image, decode_window
from vit_jax.data.reader import Encoded, encoded, orientation
from vit_jax.data.source import Example

NO_LIMIT = 10**9
# Pillow and TensorFlow link different libjpegs, which round colour conversions differently.
JPEG_LEVELS = 2
# In addition, Pillow rounds differently when it turns CMYK into RGB.
CMYK_LEVELS = 3


def ready(data, turned=1):
    image = encoded(Example(data, (0,), turned), NO_LIMIT)
    assert isinstance(image, Encoded), image
    return Encoded(tf.constant(image.data), tf.constant(image.size), tf.constant(turned))


def by_pillow(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    return np.asarray(image.convert("RGB")).astype(int)


def saved(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


@pytest.fixture
def image(photo_like):
    return Image.fromarray(photo_like(40, 61))


@pytest.fixture
def transparent(image):
    image = image.copy()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def test_lossless_formats_equal_pillow(image, transparent):
    files = {
        "PNG": saved(image, "PNG"),
        "PNG, gray": saved(image.convert("L"), "PNG"),
        "PNG, one bit": saved(image.convert("1"), "PNG"),
        "PNG, palette": saved(image.quantize(16), "PNG"),
        "PNG, palette and transparency": saved(image.quantize(16), "PNG", transparency=3),
        "PNG, alpha is dropped": saved(transparent, "PNG"),
        "PNG, gray and alpha": saved(transparent.convert("LA"), "PNG"),
        "GIF": saved(image, "GIF"),
        "BMP": saved(image, "BMP"),
        "WebP": saved(image, "WEBP", lossless=True),
        "WebP, alpha": saved(transparent, "WEBP", lossless=True, exact=True),
    }
    for name, data in files.items():
        np.testing.assert_array_equal(decode_image(ready(data)), by_pillow(data), err_msg=name)


def test_16_bits_keep_the_upper_8():
    pixels = np.random.default_rng(0).integers(0, 2**16, (9, 7)).astype(np.uint16)
    decoded = decode_image(ready(saved(Image.fromarray(pixels), "PNG"))).numpy()
    np.testing.assert_array_equal(decoded, np.repeat((pixels >> 8)[..., None], 3, axis=2))


def test_jpeg_is_near_pillow(image):
    files = {
        "colour": (saved(image, "JPEG", quality=90), JPEG_LEVELS),
        "gray": (saved(image.convert("L"), "JPEG"), JPEG_LEVELS),
        "progressive": (saved(image, "JPEG", progressive=True), JPEG_LEVELS),
        "CMYK": (saved(image.convert("CMYK"), "JPEG"), CMYK_LEVELS),
    }
    for name, (data, levels) in files.items():
        decoded = decode_image(ready(data)).numpy()
        np.testing.assert_allclose(decoded, by_pillow(data), atol=levels, err_msg=name)


def test_what_tensorflow_does_not_decode_is_as_pillow_decodes_it(image):
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "animated": saved(image, "WEBP", save_all=True, append_images=[image.rotate(90)]),
        "palette": saved(image.quantize(16), "BMP"),
        "two colours": saved(image.convert("1"), "BMP"),
        "PPM": saved(image, "PPM"),
        "JPEG 2000": saved(image, "JPEG2000"),
        "turned": saved(image, "AVIF", exif=exif),
        "TIFF": saved(image, "TIFF"),
    }
    for name, data in files.items():
        decoded = decode_image(ready(data)).numpy()
        np.testing.assert_array_equal(decoded, by_pillow(data), err_msg=name)


def test_images_that_pillow_does_not_decode(image):
    pages = saved(image, "TIFF", save_all=True, append_images=[image])
    large = saved(Image.new("L", (20, 20)), "PPM")
    for data, reason in ((pages, "pages"), (large, "max_image_pixels=300")):
        assert reason in str(encoded(Example(data, (0,)), 300 if data == large else NO_LIMIT))
    with pytest.raises(tf.errors.InvalidArgumentError, match="truncated"):
        decode_image(ready(saved(image, "PPM")[:200]))


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_of_images_and_windows(image, value):
    exif = Image.Exif()
    exif[0x0112] = value
    for file_format, levels in (("PNG", 0), ("JPEG", JPEG_LEVELS)):
        # No chroma subsampling, or a window's rim would be interpolated without its surroundings.
        options = {"subsampling": 0} if file_format == "JPEG" else {}
        data = saved(image, file_format, exif=exif, **options)
        upright = by_pillow(data)
        file = ready(data, orientation(data))
        np.testing.assert_array_equal(file.size, upright.shape[:2])
        np.testing.assert_allclose(decode_image(file).numpy(), upright, atol=levels)
        window = decode_window(file, tf.constant([3, 5, 11, 17])).numpy()
        np.testing.assert_allclose(window, upright[3:14, 5:22], atol=levels)


@pytest.mark.parametrize("value", [1, 3, 6, 7])
def test_orientation_of_reduced_windows(value):
    """At a quarter of the size: means of 4 x 4 pixels, except outside the window."""
    exif = Image.Exif()
    exif[0x0112] = value
    smooth = np.linspace(0, 255, 64 * 48).reshape(64, 48).astype(np.uint8)
    data = saved(Image.fromarray(smooth), "JPEG", exif=exif, quality=95)
    upright = by_pillow(data)
    window = tf.constant([8, 4, 32, 24])
    decoded = decode_window(ready(data, orientation(data)), window, at_least=(8, 6)).numpy()
    expected = upright[8:40, 4:28].reshape(8, 4, 6, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(decoded, expected, atol=JPEG_LEVELS)


def test_headers_forbid_decoding():
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (100_000).to_bytes(4, "big") * 2
    for data, name in ((huge, "max_image_pixels=100000000"), (b"", "empty"), (b"text", "format")):
        assert name in str(encoded(Example(data, (0,)), 10**8))


@pytest.mark.parametrize("window", [[0, 0, 8, 8], [30, 50, 8, 8]])
def test_a_truncated_jpeg_fails_in_every_window(image, window):
    data = saved(image, "JPEG")
    file = ready(data[: len(data) * 2 // 3])
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_image(file)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_window(file, tf.constant(window))


def test_first_frame_of_an_animation(image):
    data = saved(image, "GIF", save_all=True, append_images=[image.rotate(90)])
    np.testing.assert_array_equal(decode_image(ready(data)), by_pillow(data))
