"""Prediction with Pillow sees the pixels that evaluation with TensorFlow sees."""

import io
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.messages import refused
from vit_jax import config as configs
from vit_jax.core.errors import UserError
from vit_jax.data.pipeline import eval_batches
from vit_jax.data.source import Request
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.models import Preprocess, images
from vit_jax.run.parts import networks

# In levels of 255. Both resize bilinearly with antialiasing but round at different places; JPEG
# decoders may differ by two levels.
MEAN_LEVELS, MAX_LEVELS = 0.5, 4


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for i, (size, ending) in enumerate(
            [((90, 70), "png"), ((64, 100), "jpg"), ((61, 61), "png")]
        ):
            # Smooth, like photographs: noise would only measure the JPEG decoder.
            small = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
            image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
            image.save(tmp_path / split / "a" / f"{i}.{ending}")
    return tmp_path


@pytest.mark.parametrize(
    "preprocess",
    [
        "decode|resize_small(48)|central_crop((40, 32))",
        "decode|resize((24, 40))",
        "decode|resize_small(47, method='bicubic', longer='down')|central_crop(41, 'nearest')",
        "decode|resize((24, 40), method='lanczos')",
        "decode|resize_small((40, 48), 'bicubic')|central_crop((39, 41), middle='nearest')",
        "decode|resize_long((40, 48), 'bicubic')|central_crop((39, 41), fill=(128, 128, 128))",
        "decode|resize_long((40, 48), 'bicubic')|central_crop((39, 41), fill=(0, 0, 0))",
        "decode|resize_small(47)|central_crop((80, 31), fill=(0, 99, 200))",
        "decode|resize_small(48, method='area')|central_crop(48)",
        "decode|resize((24, 40), antialias=False)",
        "decode|resize((24, 40), method='bicubic', antialias=False)",
        "decode|resize((24, 40), method='lanczos', antialias=False)",
    ],
)
def test_equals_the_evaluations_pixels(folder, preprocess):
    config = configs.resolve(
        {
            "input": {"preprocess": preprocess},
            "evals": {"val": {"preprocess": preprocess, "split": "val"}},
        }
    )
    prepared = networks.preprocess(config.input, config.evals)
    source = ImageFolder(Request("val", str(folder)))
    with eval_batches(
        source, preprocess, batch_size=4, on_bad_image="fail", max_image_pixels=10**6, threads=1
    ) as batches:
        batch = next(iter(batches))
    for image, index in zip(batch["image"], batch["index"], strict=True):
        if index < 0:
            continue
        ours = images.load(Path(source.describe(index)), prepared)
        theirs = (image / 255.0 - prepared.mean) / prepared.std
        levels = np.abs(ours - theirs) * 255 * 0.5
        assert levels.mean() <= MEAN_LEVELS
        assert levels.max() <= MAX_LEVELS


def test_the_pixel_limit_is_that_of_training():
    assert configs.RunConfig().input.max_image_pixels == images.MAX_PIXELS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("size", "preprocess"),
    [
        ((1, 5_000_000), Preprocess((16, 16), resize=256, crop=(16, 16))),  # would be 1.28e9 high
        ((5_000_000, 1), Preprocess((16, 16), resize=256, crop=(16, 16))),
        ((1, 5_000_000), Preprocess((224, 224), resize=(224, 224))),  # 224 x 5,000,000 in between
        ((10_000, 10_001), Preprocess((16, 16), resize=16)),
    ],
)
def test_images_that_take_too_many_pixels_are_refused(tmp_path, size, preprocess):
    file = tmp_path / "large.png"
    Image.new("1", size).save(file)
    with refused("large.png"):
        images.load(file, preprocess)


@pytest.mark.filterwarnings("ignore:Image size")  # Pillow has a limit of its own
def test_an_image_of_pillow_is_refused_before_it_is_decoded(tmp_path):
    file = tmp_path / "large.png"
    Image.new("1", (11_000, 10_000)).save(file)
    file.write_bytes(file.read_bytes()[:200])  # decoding would find that it is truncated
    with Image.open(file) as image, refused("Image 3", "11000 x 10000"):
        images.load(image, Preprocess(image_size=(8, 8), resize=(8, 8)), 3)


@pytest.mark.parametrize("shape", [(0, 8, 3), (8, 0, 3)])
def test_an_empty_crop_is_refused(shape):
    """Pillow resizes it to a black image, which has most likely classes, too."""
    ((_, image),) = images.listed(np.zeros(shape, np.uint8))
    with pytest.raises(UserError, match="Image 0 has no pixels"):
        images.load(image, Preprocess(image_size=(8, 8), resize=(8, 8)))


def test_whatever_a_decoder_raises_is_told(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("Decoding of color planes failed")  # as the one of AVIF

    file = tmp_path / "a.png"
    Image.new("L", (8, 8)).save(file)
    monkeypatch.setattr(images, "rgb", fail)
    with refused("a.png"):
        images.load(file, Preprocess(image_size=(8, 8), resize=(8, 8)))


def test_floats_of_no_known_range_are_refused(tmp_path):
    file = tmp_path / "photo.tiff"
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(file)
    with refused("photo.tiff"):
        images.load(file, Preprocess(image_size=(8, 8), resize=(8, 8)))


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_arrays_are_images_of_three_channels_behind_or_batches_of_them(asarray):
    pixels = np.arange(144, dtype=np.uint8).reshape(2, 3, 8, 3)
    for given in (asarray(pixels), [asarray(image) for image in pixels]):
        names, images_of_pillow = zip(*images.listed(given), strict=True)
        assert names == (0, 1)
        np.testing.assert_array_equal(np.stack(images_of_pillow), pixels)
    ((_, one),) = images.listed(asarray(pixels[0]))  # of three rows
    np.testing.assert_array_equal(one, pixels[0])


@pytest.mark.parametrize("shape", [(3, 8, 9), (3, 8, 4), (8, 9), (8, 9, 4), (2, 3, 8, 9), (9,)])
def test_arrays_of_other_shapes_are_not_guessed_at(shape):
    with pytest.raises(UserError, match="Image 0 is uint8"):
        images.listed(np.zeros(shape, np.uint8))


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    """A pipe would be waited for, for ever; an unset variable is not the working directory."""
    os.mkfifo(tmp_path / "pipe.png")
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    for name in (f"{tmp_path}/pipe.png", "a" * 5000, ""):
        with refused(name[:100]):
            images.find([name])


def test_files_of_a_folder_that_are_not_images_are_counted_by_the_reason(tmp_path):
    sub = tmp_path / "a" / "b"
    for folder in (sub, tmp_path / ".thumbs", tmp_path / "__MACOSX"):
        folder.mkdir(parents=True)
    names = ["a/b/1.jpg", "a/2.AVIF", "a/3.HEIC", "a/4.heic", "a/notes.txt", ".thumbs/1.jpg",
             "__MACOSX/._1.jpg", "a/.5.png", ".DS_Store", "a/Thumbs.db"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link").symlink_to(sub)
    notes = io.StringIO()
    assert images.find([str(tmp_path)], notes) == [tmp_path / "a/2.AVIF", sub / "1.jpg"]
    assert {note.partition(", such as")[0] for note in notes.getvalue().splitlines()} == {
        "passed over 2 files: in the format .heic, which is not read (convert to JPEG or PNG)",
        "passed over 1 file: without the extension of an image",
        "passed over 2 files: in hidden folders, or those of an operating system",
        "passed over 1 file: hidden, by a dot before the name",
        "passed over 1 file: not regular files (pipes, or links to nothing)",
        "passed over 1 file: links to folders",
    }


@pytest.mark.parametrize("address", ["https://example.org/cat.jpg", "gs://b/cat.jpg", "file:///a"])
def test_addresses_of_images_are_not_fetched(address):
    with refused(address):
        images.find([address])
