"""What is said of an image."""

import base64
import io
import random
import struct
import zlib

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tests.messages import refused
from vit_jax import models
from vit_jax.core import arrays
from vit_jax.core.errors import NonFiniteError, UserError
from vit_jax.core.image_files import OPENED
from vit_jax.predict import Predictor
from vit_jax.tools.demo import examples, explainer
from vit_jax.tools.demo.__main__ import render_page
from vit_jax.tools.demo.explainer import GRAD_CAM, Explainer
from vit_jax.weights import Loaded

DIGIT = "docs/digits/5_28.png"
ROUNDING = 1e-5  # another program computes the same


@pytest.fixture(scope="module")
def of_digits(digits_run):
    return Explainer(str(digits_run), top_k=10)


def pixels(url):
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def encoded(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def photo(width=40, height=30):
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise)


def test_it_says_what_predict_says(of_digits, digits_run):
    with open(DIGIT, "rb") as file:
        found = of_digits(file.read())
    ((_, expected),) = Predictor(str(digits_run))(DIGIT, top_k=10)
    assert [c["name"] for c in found["classes"]] == [c["name"] for c in expected]
    for one, other in zip(found["classes"], expected, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=ROUNDING)
    seen, heat = pixels(found["seen"]), pixels(found["heat"])
    assert seen.shape == heat.shape == (320, 320, 3)
    with Image.open(DIGIT) as digit:
        assert (seen[20::40, 20::40] == np.asarray(digit.convert("RGB"))).all()
    assert len(np.unique(heat)) > 10


@pytest.mark.parametrize("file_format", OPENED)
def test_formats(of_digits, file_format):
    found = of_digits(encoded(photo(), file_format))
    assert sum(c["probability"] for c in found["classes"]) == pytest.approx(1, abs=1e-4)


def test_orientation_is_honoured(of_digits):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees, clockwise
    turned = of_digits(encoded(photo(), "PNG", exif=exif))
    upright = of_digits(encoded(photo().transpose(Image.Transpose.ROTATE_270), "PNG"))
    assert turned == upright
    assert turned != of_digits(encoded(photo(), "PNG"))


@pytest.mark.slow
def test_a_feature_map_has_grad_cam(monkeypatch):
    model = models.create(
        "R50x1", units=(1,), root_width=32, num_classes=3, image_size=24, rngs=nnx.Rngs(0)
    )
    loaded = Loaded(model, "R50x1", ("n01514668 cock", "hen", "egg"), 0)
    monkeypatch.setattr(explainer, "load_classifier", lambda *args, **kwargs: loaded)
    of_bit = Explainer("x", top_k=2)
    assert of_bit.kind == GRAD_CAM
    found = of_bit(encoded(photo(), "JPEG"))
    assert {c["name"] for c in found["classes"]} <= {"cock", "hen", "egg"}
    assert len(found["classes"]) == 2
    assert pixels(found["heat"]).shape == pixels(found["seen"]).shape


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (4, "uint16"), (13, "float32")])
def test_arrays_of_any_channels(monkeypatch, channels, dtype):
    form = models.Preprocess(
        (8, 8), (8, 8), mean=(0.4,), std=(0.3,), channels=channels, dtype=dtype
    )
    small = {"depth": 1, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3}
    model = models.create(
        "ViT-Ti/4", image_size=8, channels=channels, preprocess=form, rngs=nnx.Rngs(0), **small
    )
    loaded = Loaded(model, "ViT-Ti/4", ("cock", "hen", "egg"), 0)
    monkeypatch.setattr(explainer, "load_classifier", lambda *args, **kwargs: loaded)
    of_arrays = Explainer("x", top_k=3)
    image = np.random.default_rng(0).uniform(0, 1, (20, 24, channels)) * arrays.largest(dtype)
    np.save(file := io.BytesIO(), image.astype(dtype))
    found = of_arrays(file.getvalue())
    assert len(found["classes"]) == 3
    assert pixels(found["heat"]).shape == pixels(found["seen"]).shape == (320, 320, 3)
    page = render_page(of_arrays, "x", [examples.Sample("one", file.getvalue())])
    assert 'accept=".npy,.npz,.tif,.tiff"' in page and "data:image/jpeg" in page
    assert of_arrays.thumbnail_url(b"no array") is None


def huge():
    """A PNG that says that it has 20,000 x 20,000 pixels."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["JPEG"]),
        (b"GIF89a", []),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", ["JPEG", "PNG", "AVIF"]),
        (encoded(photo(), "EPS"), ["JPEG", "PNG", "AVIF"]),
        (encoded(photo(), "JPEG")[:800], ["truncated"]),
        (encoded(photo(), "PNG")[:800], []),
        (huge(), []),
        (encoded(Image.new("1", (11_000, 10_000)), "PNG"), ["11000 x 10000"]),
    ],
    ids=["empty", "header", "svg", "eps", "jpeg", "png", "bomb", "large"],
)
def test_bad_files(of_digits, bounded, data, words):
    """Pillow, which words some of these messages, has its own from version to version."""
    with pytest.raises(UserError) as error:
        of_digits(data)
    assert all(word in str(error.value) for word in ("file", *words)), error.value
    assert "0x" not in str(error.value)  # no object of Python's


@pytest.mark.parametrize("file_format", OPENED)
def test_damaged_files_are_told_or_shown(of_digits, file_format):
    draw = random.Random(0)
    whole = encoded(photo(), file_format)
    for _ in range(40):
        data = bytearray(whole[: draw.randrange(1, len(whole) + 1)])
        for _ in range(draw.randrange(4)):
            data[draw.randrange(min(len(data), 200))] = draw.randrange(256)
        try:
            explainer.images.load(bytes(data), of_digits._preprocess, "The file")
        except UserError:
            continue


def test_numbers_that_are_not_finite(of_digits, monkeypatch):
    broken = lambda x: (np.full(10, np.nan, np.float32), np.zeros((4, 4)))
    monkeypatch.setattr(of_digits, "_look", broken)
    with pytest.raises(NonFiniteError) as error:
        of_digits(encoded(photo(), "PNG"))
    assert str(of_digits._checkpoint) in str(error.value)


def test_examples_of_the_run(digits_run, tmp_path):
    found = examples.find([], str(digits_run))
    assert len(found) == examples.MAX_EXAMPLES
    assert {each.name for each in found} <= set("0123456789")
    assert found == examples.find([], f"{digits_run}/checkpoints/6")
    assert examples.find([], str(tmp_path)) == []
    assert examples.find([], "hf:google/vit-base-patch16-224") == []
    (tmp_path / "config.json").write_text('{"architectures": ["ViT"]}')
    assert examples.find([], str(tmp_path)) == []
    given = examples.find(["docs/digits"], str(digits_run))
    assert [each.name for each in given] == ["1_7", "3_8", "5_28", "6_6"]
    with refused("nowhere"):
        examples.find(["nowhere"], str(digits_run))
