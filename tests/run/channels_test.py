"""Images of any number of channels: as arrays, in training, prediction and export."""

import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY_RUN, save_toy
from tests.messages import refused
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.core import arrays
from vit_jax.data import pipeline
from vit_jax.data.source import Request
from vit_jax.data.sources.image_folder import ImageFolder
from vit_jax.models import images
from vit_jax.run.build import Run
from vit_jax.run.parts.warm_start import adapt_channels
from vit_jax.train import train

FORMS = [(1, "uint8"), (4, "float32"), (13, "uint16"), (3, "uint16")]
SAME_MATH = 1e-6
ONE_LEVEL = 1.01  # Pillow's filter and TensorFlow's round alike but for ties


def array(i, channels, dtype, size=20):
    """An image whose class is which half is bright, of a size that is not the model's."""
    rng = np.random.default_rng(i)
    most = arrays.largest(dtype)
    x = rng.uniform(0, 0.4, (size, size + 4, channels))
    x[:, : size // 2] += 0.5 * (i % 2)
    return (x * most).astype(dtype)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, image)


@pytest.fixture
def folder(tmp_path):
    def write(channels, dtype, number=16):
        for split, i in itertools.product(("train", "test"), range(number)):
            image = array(i + 100 * (split == "test"), channels, dtype)
            save(tmp_path / "set" / split / "ab"[i % 2] / f"{i}.npy", image)
        return tmp_path / "set"

    return write


def overrides(root):
    return [
        "input.source=image_folder", f"input.data_dir={root}", "input.num_examples=none",
        "input.num_classes=none", "input.split=train", "input.mean=0.4", "input.std=0.3",
        "input.preprocess=decode|resize(16)", "evals.t.split=test",
        "evals.t.preprocess=decode|resize(16)",
    ]  # fmt: skip


def source(root, split="train"):
    return ImageFolder(Request(split=split, data_dir=str(root)))


def batch(data, preprocess, skip=False):
    made = pipeline.eval_batches(
        data, preprocess, batch_size=data.num_examples, max_image_pixels=10**6, threads=1,
        on_bad_image="skip" if skip else "fail",
    )  # fmt: skip
    with made as batches:
        return next(batches)


@pytest.mark.parametrize(("channels", "dtype"), FORMS)
def test_a_batch_holds_the_values_of_the_files(folder, channels, dtype):
    data = source(folder(channels, dtype))
    assert data.pixels == arrays.Pixels(channels, dtype, stored=True)
    made = batch(data, "decode|central_crop(16)")
    assert made["image"].dtype == dtype
    for image, index in zip(made["image"], made["index"], strict=True):
        stored = np.load(data.describe(index))
        np.testing.assert_array_equal(image, stored[2:18, 4:20])
    for ops in ("inception_crop(8)|flip_lr", "resize(16, method='bicubic')|pad_crop(16, 2)"):
        x = batch(data, f"decode|{ops}")["image"].astype(float)
        assert x.std() > 0 and x.min() > -0.2  # floats overshoot


@pytest.mark.parametrize(("channels", "dtype"), FORMS)
def test_prediction_prepares_images_as_the_pipeline_does(folder, channels, dtype):
    from vit_jax import models

    data = source(folder(channels, dtype))
    form = {"mean": (0.4,), "std": (0.3,), "channels": channels, "dtype": dtype}
    about = models.Preprocess((16, 16), (16, 16), **form)
    made = batch(data, "decode|resize(16)")
    most = arrays.largest(dtype)
    for image, index in zip(made["image"], made["index"], strict=True):
        found = images.load(data.describe(index), about)
        wanted = (image.astype(np.float32) / most - 0.4) / 0.3
        level = ONE_LEVEL / (most * 0.3) if dtype != "float32" else 1e-5
        np.testing.assert_allclose(found, wanted, atol=level)


def npz(image):
    np.savez(file := io.BytesIO(), a=image)
    return file.getvalue()


def npy(image):
    np.save(file := io.BytesIO(), image)
    return file.getvalue()


def tiff(image):
    pages = [Image.fromarray(x) for x in np.moveaxis(image, -1, 0)]
    pages[0].save(file := io.BytesIO(), "TIFF", save_all=True, append_images=pages[1:])
    return file.getvalue()


@pytest.mark.parametrize("to_file", [npy, npz, tiff])
@pytest.mark.parametrize(("channels", "dtype"), FORMS)
def test_files_of_arrays(to_file, channels, dtype):
    image = array(0, channels, dtype)
    np.testing.assert_array_equal(arrays.decode(to_file(image), 10**6), image)
    first = arrays.decode(npy(np.moveaxis(image, -1, 0)), 10**6)  # channels in front
    np.testing.assert_array_equal(first, image)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (npy(np.zeros((4, 4, 9), np.uint8)), "which side"),
        (npy(np.zeros((9, 9), np.int64)), "int64"),
        (npy(np.full((9, 9), np.nan, np.float32)), "not finite"),
        (npy(np.zeros((2000, 2000), np.uint8)), "max_image_pixels"),
        (npy(np.zeros((9, 9), np.uint8))[:-1], "too early"),
        (npy(np.array([{}])), "object"),
        (b"", "EOF"),
    ],
)
def test_arrays_that_cannot_be_read(data, named):
    with pytest.raises(ValueError, match=named):
        arrays.decode(data, 10**6)


def test_files_of_another_form_are_bad_images(folder):
    root = folder(4, "uint8")
    path = sorted((root / "train" / "b").iterdir())[0]
    np.save(path, array(0, 4, "uint16"))
    with refused(str(path), "uint16 of 4 channels", "uint8 of 4"):
        batch(source(root), "decode|resize(16)")
    assert (batch(source(root), "decode|resize(16)", skip=True)["weight"] == 0).sum() == 1


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (["input.mean=0.5,0.5,0.5"], ["input.mean", "4 channels"]),
        (["model.channels=3"], ["model.channels=3", "4 channels"]),
        (["input.preprocess=decode|resize(16)|grayscale(0.5)"], ["grayscale(0.5)", "RGB"]),
        (["input.preprocess=decode|resize(16)|randaugment(2, 9)"], ["randaugment(2, 9)"]),
        (["input.cache=device"], ["input.cache=device"]),
        (
            ["method.kind=lejepa", "input.views=['decode|resize(16)|solarize(0.5)']"],
            ["input.views", "solarize(0.5)", "RGB"],
        ),
    ],
)
def test_what_does_not_go_with_arrays(folder, tmp_path, changes, names):
    with refused(*names):
        run = configs.resolve(TINY_RUN, [*overrides(folder(4, "uint8")), *changes])
        Run.build(run, tmp_path / "r")


def test_an_evaluation_on_other_channels_is_refused(folder, tmp_path):
    root = folder(4, "uint8")
    for path in (root / "test").glob("*/*.npy"):
        np.save(path, array(0, 3, "uint8"))
    with refused("evals.t", "uint8 of 3 channels", "sees 4"):
        Run.build(configs.resolve(TINY_RUN, overrides(root)), tmp_path / "r")


@pytest.mark.parametrize("method", ["distillation", "feature_distillation"])
def test_a_teacher_of_other_channels_is_refused(folder, tmp_path, method):
    teacher = save_toy(tmp_path / "teacher.npz", num_classes=2)
    changes = [f"method.kind={method}", f"method.teacher={teacher}"]
    run = configs.resolve(TINY_RUN, [*overrides(folder(4, "uint8")), *changes])
    with refused(f"method.teacher={teacher}", "sees 3 channels", "images have 4"):
        Run.build(run, tmp_path / "r")


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_kernels_are_adapted_as_in_timm(channels):
    """timm/models/_manipulate.py, adapt_input_conv, of PyTorch's [D, 3, P, P], in NumPy."""
    kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 5)).astype(np.float32)
    weight = kernel.transpose(3, 2, 0, 1)
    if channels == 1:
        weight = weight.sum(1, keepdims=True)
    elif channels != 3:
        weight = np.tile(weight, (1, -(-channels // 3), 1, 1))[:, :channels] * (3 / channels)
    found = adapt_channels(jnp.asarray(kernel), channels=channels)
    np.testing.assert_allclose(found, weight.transpose(2, 3, 1, 0), rtol=SAME_MATH)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "dtype"), FORMS)
def test_a_run_learns_and_its_model_is_used(folder, tmp_path, run_python, channels, dtype):
    root = folder(channels, dtype)
    changes = ["total.steps=40", "optim.lr=3e-3"]
    config = configs.resolve(TINY_RUN, [*overrides(root), *changes])
    state = train(config, tmp_path / "a")
    assert state.params["patches"]["kernel"].shape[2] == channels
    model = weights.load(tmp_path / "a")
    assert (model.spec.channels, model.preprocess.dtype) == (channels, dtype)
    image = str(root / "test" / "b" / "1.npy")
    for command in (
        ("predict", "--checkpoint", str(tmp_path / "a"), image),
        ("embed", "--checkpoint", str(tmp_path / "a"), "--output", str(tmp_path / "e.parquet"),
         "--split", "test", str(root)),
        ("tools.export", "--checkpoint", str(tmp_path / "a"), "--output", str(tmp_path / "x"),
         "--to", "stablehlo"),
        ("tools.look.visualize", "--checkpoint", str(tmp_path / "a"), "--images", image,
         "--output", str(tmp_path / "v")),
    ):  # fmt: skip
        done = run_python("-m", f"vit_jax.{command[0]}", *command[1:])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    # Weights of three channels.
    rgb = configs.resolve(TINY_RUN, ["total.steps=3"])
    train(rgb, tmp_path / "rgb")
    changes = [
        f"init.weights={tmp_path / 'rgb'}", "init.head=reset", "optim.lr=1e-30", "total.steps=3",
        "input.preprocess=decode|resize(8)", "evals.t.preprocess=decode|resize(8)",
    ]  # fmt: skip
    if channels != 3:
        with refused("init.weights", "init.channels=repeat"):
            Run.build(configs.resolve(TINY_RUN, [*overrides(root), *changes]), tmp_path / "no")
        changes.append("init.channels=repeat")
    tuned = train(configs.resolve(TINY_RUN, [*overrides(root), *changes]), tmp_path / "tuned")
    before = weights.load(tmp_path / "rgb").patches.kernel[...]
    wanted = adapt_channels(before, channels=channels)
    np.testing.assert_allclose(tuned.params["patches"]["kernel"], wanted, rtol=1e-5, atol=1e-6)
    jax.clear_caches()
