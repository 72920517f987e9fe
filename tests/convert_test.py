"""vit-jax convert, and converted weights wherever this project reads its own."""

import os
import re
import resource
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from PIL import Image

from tests.messages import refused
from tests.weights.conftest import params_of, randomised
from vit_jax import models, weights
from vit_jax.convert import convert, default_format, image_size
from vit_jax.core import pytrees
from vit_jax.learning.state import state_layout
from vit_jax.models import images
from vit_jax.predict import Predictor
from vit_jax.run.parts import inputs, networks
from vit_jax.run.parts.warm_start import warm_start
from vit_jax.weights import saving


@pytest.fixture
def npz(tmp_path):
    """A toy ViT in Google's format and its parameters by name."""
    sizes = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2}
    loaded = randomised("ViT-Ti/4", None, num_classes=4, image_size=8, **sizes)
    path = tmp_path / "toy.npz"
    weights.save(loaded, path, "google_npz")
    return path, params_of(loaded.model)


TINY = {"depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 2}


def assert_same(left, right):
    assert list(left) == list(right)
    for name, x in left.items():
        np.testing.assert_array_equal(right[name], x, err_msg=name)


def test_through_all_formats_and_back(npz, tmp_path):
    path, expected = npz
    line = convert(str(path), str(tmp_path / "a"), to="checkpoint")
    assert line == f"ViT-2x16/4, images of 8 x 8 pixels, 4 classes: {tmp_path}/a"
    convert(str(tmp_path / "a"), str(tmp_path / "b"), to="timm")
    convert(str(tmp_path / "b"), str(tmp_path / "c"), to="huggingface")
    for folder in "abc":
        assert_same(params_of(weights.load(tmp_path / folder)), expected)
    convert(str(tmp_path / "c"), str(tmp_path / "e.npz"), to="google_npz")
    assert_same(dict(np.load(tmp_path / "e.npz")), dict(np.load(path)))


def test_converts_another_size_without_a_head(npz, tmp_path):
    path, expected = npz
    convert(str(path), str(tmp_path / "a"), to="huggingface", image_size=(16, 16), head="drop")
    model = weights.load(tmp_path / "a")
    assert (model.num_classes, model.preprocess.image_size) == (0, (16, 16))
    table = model.positions.embedding[...]
    assert table.shape == (17, 16)
    np.testing.assert_array_equal(table[0], expected["positions/embedding"][0])


@pytest.mark.parametrize("size", [(20, 20), (20, 12), (8, 16)])
def test_another_size_is_cropped_from_photos_of_any_shape(tmp_path, size):
    about = models.Preprocess((12, 12), 16, (12, 12), longer="down")
    toy = randomised("ViT-Ti/4", num_classes=3, image_size=12, preprocess=about, **TINY)
    weights.save(toy, tmp_path / "a", "checkpoint")
    preprocess = weights.open_model(tmp_path / "a", image_size=size).preprocess
    for shape in ((64, 48), (48, 64), (50, 50), (300, 30)):
        assert images.load(Image.new("RGB", shape), preprocess).shape == (*size, 3)
    sides = (preprocess.resize,) * 2 if isinstance(preprocess.resize, int) else preprocess.resize
    assert sides == tuple(round(side * 16 / 12) for side in size)
    assert isinstance(preprocess.resize, int) == (size[0] == size[1])


# The inputs of docs/weights.md, as toys: fields of a model, and the format it is in.
ON_THE_PAGE = {
    "hf:google/vit-base-patch16-224@main": (
        {"gelu": "exact", "norm_epsilon": 1e-12},
        "huggingface",
    ),
    "google/vit-base-patch16-224": ({"gelu": "exact", "norm_epsilon": 1e-12}, "huggingface"),
    "B_16.npz": ({}, "google_npz"),
    "runs/vit_i1k": ({"pre_logits": True}, "checkpoint"),
    "runs/tuned": ({}, "checkpoint"),
}


def page_commands():
    page = Path(__file__).parents[1] / "docs" / "weights.md"
    commands = re.findall(r"^vit-jax convert (.*)$", page.read_text(), re.MULTILINE)
    return [command for command in commands if "--labels" not in command]  # zero_shot_test.py


@pytest.mark.parametrize("command", page_commands())
def test_the_pages_commands_convert_models_like_theirs(tmp_path, command):
    flags = dict(re.findall(r"--(\w+)[ =](\S+)", command))
    fields, format_ = ON_THE_PAGE[flags.pop("checkpoint")]
    toy = randomised("ViT-Ti/4", num_classes=3, image_size=8, **TINY, **fields)
    weights.save(toy, tmp_path / "toy.npz", format_)
    output = str(tmp_path / flags.pop("output"))
    to = flags.pop("to", default_format(output))
    flags["image_size"] = image_size(flags.get("image_size"))
    convert(str(tmp_path / "toy.npz"), output, to=to, **flags)
    weights.checkpoint_info(output)


def test_existing_outputs_are_not_overwritten(npz, tmp_path):
    with refused():
        convert("not read yet", str(npz[0]), to="google_npz")
    with refused():
        convert("not read yet", str(tmp_path / "x"), to="google_npz")
    with refused():
        convert(str(npz[0]), str(tmp_path / "x"), to="timm", ema=True)
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("link", "link.npz", "a" * 300):
        if name == "link.npz":
            (tmp_path / name).symlink_to("nowhere")
        to = "google_npz" if name.endswith(".npz") else "timm"
        with refused():
            convert(str(npz[0]), str(tmp_path / name), to=to)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "link.npz", "toy.npz"]


@pytest.fixture
def full_disk():
    """A limit on file size stands in for a full disk where no small disk can be mounted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("to", saving.DESTINATIONS)
def test_a_full_disk_leaves_nothing(npz, tmp_path, full_disk, to):
    output = tmp_path / ("out.npz" if to == "google_npz" else "out")
    with refused("File too large"):
        convert(str(npz[0]), str(output), to=to)
    assert os.listdir(tmp_path) == ["toy.npz"]


def test_a_run_starts_from_them(npz, tiny_run):
    path, expected = npz
    config = tiny_run("model.name=none", f"init.weights={path}", "init.head=reset",
                      "input.num_classes=7", "input.preprocess=decode|resize(16)",
                      "model.depth=none", "model.width=none", "model.mlp_dim=none",
                      "model.num_heads=none")  # fmt: skip
    model = networks.model(config, num_classes=7)
    assert (model.info.spec["depth"], model.info.spec["width"]) == (2, 16)
    mesh = inputs.mesh(config.mesh)
    layout = state_layout(
        model.make, optax.identity(), mesh, ema_decay=None, shard_optimizer=False
    ).state
    state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), layout)
    trained = networks.trained_weights(config.init)
    after = warm_start(
        state, trained, model.info, head="reset", position_resize="bilinear", ema=False
    )
    params = pytrees.flatten(after.params)
    assert params["positions/embedding"].shape == (17, 16)
    assert params["head/kernel"].shape == (16, 7)
    for name in set(expected) - {"positions/embedding", "head/kernel", "head/bias"}:
        np.testing.assert_array_equal(params[name], expected[name], err_msg=name)


def test_predict_takes_them(npz, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    ((_, classes),) = Predictor(str(npz[0]))(tmp_path / "image.png", top_k=2)
    assert len(classes) == 2
    convert(str(npz[0]), str(tmp_path / "backbone"), to="timm", head="drop")
    with refused("--config"):
        Predictor(str(tmp_path / "backbone"))


def test_rectangles_of_google_are_given(tmp_path):
    params = params_of(randomised("ViT-Ti/4", num_classes=0, image_size=(8, 12), **TINY).model)
    square = randomised("ViT-Ti/4", num_classes=0, image_size=8, **TINY)
    weights.save(square, tmp_path / "square.npz", "google_npz")
    arrays = dict(np.load(tmp_path / "square.npz"))
    table = "Transformer/posembed_input/pos_embedding"
    np.savez(tmp_path / "x.npz", **(arrays | {table: params["positions/embedding"][None]}))
    with refused("--image_size"):
        weights.load(tmp_path / "x.npz")
    convert(str(tmp_path / "x.npz"), str(tmp_path / "out"), to="timm", image_size=(8, 12))
    again = weights.load(tmp_path / "out")
    assert again.preprocess.image_size == (8, 12)
    np.testing.assert_array_equal(again.positions.embedding[...], params["positions/embedding"])


@pytest.mark.parametrize("text", ["0", "8x8x8", "1e3"])
def test_invalid_image_sizes(text):
    with refused("--image_size"):
        image_size(text)
