"""The trained ViT-Ti/16 of AugReg against timm, on the 17 photos beside its weights."""

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from PIL import Image
from pyarrow import parquet

from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax import config as configs
from vit_jax import weights
from vit_jax.core import synsets
from vit_jax.core.screen import Screen
from vit_jax.embed import embed
from vit_jax.evaluate import data_sets
from vit_jax.evaluate.__main__ import evaluate
from vit_jax.models import images

DATA = Path(__file__).parents[3] / "shared/data"
WEIGHTS = DATA / "vit_ti16_augreg"
LOGITS = FEATURES = 1e-4
PATCHES = 1e-5  # of the largest value, which is 31: float32 keeps 2e-6 of it, a sum somewhat less
# Levels of 255, where a sum lies between two: at most one, in hardly any value.
PIXELS, SHARE = 1, 1e-3

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"needs {WEIGHTS}"),
]


@pytest.fixture(scope="module")
def photos():
    return sorted((WEIGHTS / "images").glob("*.JPEG"))


@pytest.fixture(scope="module")
def theirs(photos, timm):  # noqa: F811
    """timm's (pixels uint8 [17, 224, 224, 3], logits [17, 1000])."""
    cfg = json.loads((WEIGHTS / "config.json").read_text())["pretrained_cfg"]
    pixels = np.stack([transformed(Image.open(file).convert("RGB"), cfg) for file in photos])
    return pixels, logits_of_timm(timm, pixels, cfg)


def logits_of_timm(timm, pixels, cfg, **architecture):  # noqa: F811
    return of_timm(timm, pixels, cfg, lambda model, x: model(x), **architecture)


def of_timm(timm, pixels, cfg, function, **architecture):  # noqa: F811, the fixture
    """function(model, inputs) of timm's model."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **architecture).eval()
    model.load_state_dict(load_file(WEIGHTS / "model.safetensors"))
    mean, std = (np.array(cfg[name], np.float32) for name in ("mean", "std"))
    inputs = torch.from_numpy((pixels / np.float32(255) - mean) / std).permute(0, 3, 1, 2)
    with torch.no_grad():
        return function(model, inputs).numpy()


def transformed(image, cfg):
    """timm's evaluation transform, with torchvision's operations on Pillow's images."""
    size = cfg["input_size"][1]
    shorter = math.floor(size / cfg["crop_pct"])
    width, height = image.size
    longer = int(shorter * max(image.size) / min(image.size))
    resized = (shorter, longer) if width <= height else (longer, shorter)
    image = image.resize(resized, Image.Resampling[cfg["interpolation"].upper()])
    top, left = (round((side - size) / 2.0) for side in (image.height, image.width))
    return np.asarray(image.crop((left, top, left + size, top + size)))


def test_prediction_equals_timms(theirs, photos):
    pixels, logits = theirs
    model = weights.load(WEIGHTS)
    prepared = np.stack([images.load(file, model.preprocess) for file in photos])
    mean, std = np.array(model.preprocess.mean), np.array(model.preprocess.std)
    np.testing.assert_array_equal(np.rint((prepared * std + mean) * 255), pixels)
    np.testing.assert_allclose(model(prepared), logits, atol=LOGITS)


@pytest.mark.parametrize("layout", ["timm", "huggingface", "google_npz", "checkpoint"])
def test_every_layout_is_right_about_all_photos(tmp_path, timm, theirs, photos, layout):  # noqa: F811
    pixels, logits = theirs
    trained = weights.load_with_info(WEIGHTS)
    if layout == "google_npz":  # whose readers compute the tanh form of GELU
        trained.model.spec = dataclasses.replace(trained.model.spec, gelu="tanh")
        cfg = json.loads((WEIGHTS / "config.json").read_text())["pretrained_cfg"]
        logits = logits_of_timm(timm, pixels, cfg, act_layer="gelu_tanh")
    path = tmp_path / "out.npz"
    weights.save(trained, path, layout)
    model, about = weights.load(path), weights.load(WEIGHTS).preprocess
    mean, std = np.array(about.mean, np.float32), np.array(about.std, np.float32)
    found = np.asarray(model((pixels / np.float32(255) - mean) / std))
    np.testing.assert_allclose(found, logits, atol=LOGITS)
    classes = [list(synsets.names_1k()).index(file.name.partition("_")[0]) for file in photos]
    assert found.argmax(-1).tolist() == classes


@pytest.mark.parametrize(
    ("features", "function"),
    [
        ("class_token", lambda model, x: model.forward_features(x)[:, 0]),
        ("mean", lambda model, x: model.forward_features(x)[:, 1:].mean(1)),
        ("patches", lambda model, x: model.forward_features(x)[:, 1:]),
        ("pre_logits", lambda m, x: m.forward_head(m.forward_features(x), pre_logits=True)),
    ],
)
def test_embedded_features_equal_timms(tmp_path, timm, theirs, photos, features, function):  # noqa: F811, the fixture
    cfg = json.loads((WEIGHTS / "config.json").read_text())["pretrained_cfg"]
    expected = of_timm(timm, theirs[0], cfg, function)
    output = tmp_path / "a.parquet"
    embed(str(WEIGHTS / "images"), str(WEIGHTS), output, features=features, screen=Screen())
    rows = {row["file"]: row["features"] for row in parquet.read_table(output).to_pylist()}
    assert rows.keys() == {file.name for file in photos}
    found = np.array([rows[file.name] for file in photos])
    atol = PATCHES * np.abs(expected).max() if features == "patches" else FEATURES
    np.testing.assert_allclose(found, expected, atol=atol)


@pytest.mark.slow
def test_each_prediction_of_5000_images_is_timms(timm):  # noqa: F811
    """Of Tiny-ImageNet's validation images, among its 100 classes; Pillow prepares theirs."""
    data = DATA / "tiny_imagenet_100"
    if not data.is_dir():
        pytest.skip(f"needs {data}")
    values = data_sets.on_data(
        [f"t={data}"], split="validation", kinds=["classification"], batch_size=64, labels=None,
        classes=None,
    )  # fmt: skip
    scored = {}
    evaluate(configs.resolve(values), epath.Path(WEIGHTS), Screen(quiet=True), scored=scored)
    ((source, scores, _),) = scored.values()
    cfg = json.loads((WEIGHTS / "config.json").read_text())["pretrained_cfg"]
    known = list(synsets.names_1k())
    columns = [known.index(name.split()[0]) for name in source.class_names]
    found = []
    for some in np.split(np.arange(source.num_examples), 100):
        encoded = [example.image for example in source.read(some)]
        photos = [Image.open(io.BytesIO(each)).convert("RGB") for each in encoded]
        pixels = np.stack([transformed(photo, cfg) for photo in photos])
        found.extend(logits_of_timm(timm, pixels, cfg)[:, columns].argmax(-1))
    assert len(found) == len(scores.prediction) == 5000
    assert scores.prediction.tolist() == found
