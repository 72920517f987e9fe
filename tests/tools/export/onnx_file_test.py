"""Models as ONNX files give in onnxruntime what they give here, from the file alone."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import randomised
from vit_jax import weights
from vit_jax.models.images import load
from vit_jax.models.layers.linear import quantise
from vit_jax.tools.export import onnx_file
from vit_jax.tools.export.onnx_file import save

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

TRAINED = Path(__file__).parents[4] / "shared/data/vit_ti16_augreg"
LOGITS = 1e-4  # of the largest logit
SMALL = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3}
TINY_VIT = SMALL | {"image_size": (12, 8)}
SMALL_RESNET = {"units": (1, 2), "root_width": 32, "num_classes": 3, "image_size": 32}
# Quick to compile; the others have an operation of their own.
QUICK = {
    "class token": ("ViT-Ti/4", TINY_VIT | {"pool": "cls"}),
    "in a loop": ("ViT-Ti/4", TINY_VIT | {"scan": True}),
    **{f"{n} channels": ("ViT-Ti/4", TINY_VIT | {"channels": n}) for n in (1, 4, 13)},
}
SLOW = {
    "attention pooling": ("ViT-Ti/4", TINY_VIT | {"pool": "map"}),
    "relative positions": ("ViT-Ti/4", TINY_VIT | {"position_embedding": "relative"}),
    "blocks of queries": ("ViT-Ti/4", SMALL | {"image_size": 128, "depth": 1}),
    "DINOv2": ("ViT-S/14-dinov2-reg", SMALL | {"image_size": 56}),
    "DINOv3": ("ViT-S/16-dinov3", SMALL | {"image_size": 64}),
    "SwiGLU": ("ViT-S+/16-dinov3", SMALL | {"image_size": 64}),
    "mixed RoPE": (
        "ViT-Ti/4",
        TINY_VIT | {"position_embedding": "rotary_mixed", "attention_norm": True, "mlp_norm": True},
    ),
    "zero-shot CLIP": (
        "ViT-Ti/4",
        TINY_VIT | {"pre_norm": True, "gelu": "quick", "projection": 8, "unit_features": True},
    ),
    "hybrid": ("R50+ViT-B/16", SMALL | SMALL_RESNET | {"patch_size": 8}),
    "stem as R": ("R+ViT-Ti/16", SMALL | {"image_size": 32}),
    "BiT": ("R50x1", SMALL_RESNET | {"units": (1, 1, 1, 2)}),
    "axial ViT": ("Axial-ViT-B/32", SMALL | {"image_size": 64}),
    "axial ResNet": ("AxialResNet-50", {"units": (1, 1, 1, 1), "num_classes": 3, "image_size": 64}),
    "EfficientNet": ("EfficientNet-B0", {"num_classes": 3, "image_size": 32}),
}


def check_logits(loaded, path, images):
    session = onnxruntime.InferenceSession(path)
    expected = np.asarray(jax.jit(loaded.model)(images))
    assert np.isfinite(expected).all()
    for batch in (len(images), 1):  # any number of images
        (found,) = session.run(None, {"images": images[:batch]})
        scale = max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected[:batch], atol=LOGITS * scale, rtol=0)


def check_model(name, fields, path):
    loaded = randomised(name, **fields)
    shape = (2, *loaded.model.preprocess.image_size, loaded.model.spec.channels)
    images = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    save(loaded, path)
    onnx.checker.check_model(path, full_check=True)
    check_logits(loaded, path, images)


@pytest.mark.parametrize("case", QUICK)
def test_logits_are_the_models(tmp_path, case):
    check_model(*QUICK[case], tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_logits_of_every_family(tmp_path, case):
    check_model(*SLOW[case], tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.skipif(not TRAINED.is_dir(), reason=f"needs {TRAINED}")
def test_logits_of_photos(tmp_path):
    trained = weights.load_with_info(TRAINED, scan=True)
    photos = sorted((TRAINED / "images").glob("*.JPEG"))
    save(trained, tmp_path / "model.onnx")
    images = np.stack([load(photo, trained.model.preprocess) for photo in photos])
    check_logits(trained, tmp_path / "model.onnx", images)


def test_states_what_its_user_needs(tmp_path):
    save(randomised("ViT-Ti/4", **TINY_VIT), tmp_path / "new" / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "new" / "model.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == ["ant", "bee", "cat"]
    preprocess = json.loads(facts["preprocess"])
    assert (preprocess["image_size"], preprocess["mean"]) == ([12, 8], [0.5, 0.5, 0.5])
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 12, 8, 3])
    assert (logits.name, logits.shape) == ("logits", ["batch", 3])
    assert onnx.load(tmp_path / "new" / "model.onnx").opset_import[0].version == onnx_file.OPSET
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.onnx"]


def test_features_of_a_model_without_a_head(tmp_path):
    loaded = randomised("ViT-Ti/4", **(TINY_VIT | {"num_classes": 0}))
    save(loaded, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [(x.name, x.shape) for x in session.get_outputs()] == [("features", ["batch", 16])]


def test_kernels_of_8_bits_stay_so(tmp_path):
    loaded = randomised("ViT-Ti/4", **(TINY_VIT | {"depth": 1}))
    quantise(loaded.model)
    save(loaded, tmp_path / "model.onnx")
    images = np.random.default_rng(1).normal(size=(2, 12, 8, 3)).astype(np.float32)
    check_logits(loaded, tmp_path / "model.onnx", images)
    types = [x.data_type for x in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert types.count(onnx.TensorProto.INT8) == 4 + 1  # of the block four, and the head's


def test_large_weights_are_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 10_000)
    monkeypatch.setattr(onnx_file, "SMALL_BYTES", 100)
    check_model("ViT-Ti/4", TINY_VIT, tmp_path / "model.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    (tmp_path / "model.onnx").unlink()
    with refused("model.onnx.data"):
        save(randomised("ViT-Ti/4", **TINY_VIT), tmp_path / "model.onnx")


def test_bad_input(tmp_path, monkeypatch):
    toy = randomised("ViT-Ti/4", **TINY_VIT)
    with refused("--output"):
        save(toy, tmp_path / "model")
    (tmp_path / "there.onnx").write_text("")
    with refused("there.onnx"):
        save(toy, tmp_path / "there.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused("--to"):
        save(toy, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
