"""Hugging Face's Dinov2 and DINOv3, without transformers; parity_dino_test.py compares with it."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.messages import refused
from tests.weights.conftest import edit, zeros_of
from vit_jax import models, weights
from vit_jax.core.errors import UserError
from vit_jax.core.schema import fields as declared
from vit_jax.models import Preprocess
from vit_jax.weights.external import ModelToWrite
from vit_jax.weights.files import detect_format
from vit_jax.weights.formats import dino, understand
from vit_jax.weights.tables import to_theirs

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", [name for name in models.available() if "dinov3" in name])
def test_released_sizes_get_their_names(name):
    """Sizes are read from arrays of these shapes, which take no memory."""
    model, params = zeros_of(name, num_classes=0, image_size=224, scan=True)
    layout = dino.DINOV3.layout_for(model.spec)
    arrays = to_theirs(layout, params)
    to_write = ModelToWrite(model.spec, 0, None, model.preprocess)
    config = dino.DINOV3.documents(to_write)["config.json"]
    read = understand(detect_format.Opened(Path("x"), "safetensors", arrays, config, None))
    assert (read.name, read.spec) == (name, models.spec(name))


def test_released_config(written):
    """Only the released config's explicit fields; the rest are DINOv3ViTConfig's defaults."""
    folder = written("dinov3")
    keys = ("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "rope_theta")
    edit(folder, dict.fromkeys((*keys, "layer_norm_eps", "hidden_act", "layerscale_value"), ...))
    edit(folder, {"pos_embed_rescale": 2.0, "drop_path_rate": 0.1, "attention_dropout": 0.1})
    assert weights.load(folder).spec == models.spec(
        "ViT-B/4-dinov3", depth=2, width=16, mlp_dim=24, num_heads=2, layer_scale=1.0
    )


PROCESSOR = {
    "size": {"height": 24, "width": 16}, "resample": 3, "do_center_crop": None, "crop_size": None,
    "image_mean": [0.43, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143],
}  # fmt: skip


def test_images_are_as_the_processor_says(written):
    """The model takes any size: that of config.json counts only if there is no other."""
    folder = written("dinov3")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(PROCESSOR))
    mean, std = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)
    about = Preprocess((24, 16), (24, 16), None, mean, std, "bicubic")
    assert weights.load(folder).preprocess == about
    assert weights.load(folder, image_size=12).preprocess.image_size == (12, 12)

    cropped = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": 16}
    file.write_text(json.dumps(PROCESSOR | cropped))
    assert weights.load(folder).preprocess == Preprocess(
        (16, 16), 20, (16, 16), mean, std, "bicubic", longer="down"
    )
    file.write_text(json.dumps(PROCESSOR | {"size": {"height": 24, "width": 18}}))
    with refused("24 x 18"):
        weights.load(folder)
    file.unlink()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert weights.load(folder).preprocess == Preprocess((12, 12), (12, 12), None, mean, std)


STRANGE = (None, True, -1, 0, 0.5, 10**30, float("nan"), "", "x", [], [1, 2, 3], {"x": 1}, ...)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_every_entry_may_be_wrong(written, name):
    """A wrong entry gives a model with other fields, or one message."""
    folder = written("dinov3")
    text = (folder / name).read_text()
    refused = 0
    for key in json.loads(text):
        for value in STRANGE:
            (folder / name).write_text(text)
            edit(folder, {key: value}, name)
            try:
                weights.checkpoint_info(folder)
            except UserError:
                refused += 1
    assert refused > 30


@pytest.mark.parametrize("kind", ["dinov2", "dinov3"])
def test_a_new_field_that_weights_are_trained_with_is_not_written(written, monkeypatch, kind):
    """Dropout stands for it: it is declared as such a field is, its default alone elsewhere."""
    of = declared.of
    new = lambda spec: dataclasses.replace(of(spec)["dropout"], elsewhere=(0.0,))
    monkeypatch.setattr(declared, "of", lambda spec: of(spec) | {"dropout": new(spec)})
    with refused("dropout=0.1"):
        written(kind, dropout=0.1)
