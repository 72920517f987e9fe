"""Models as LiteRT files give in an interpreter what they give here."""

import json
import zipfile

import jax
import numpy as np
import pytest

from tests.weights.conftest import randomised
from vit_jax.tools.export import tflite

LOGITS = 1e-4  # of the largest logit
SMALL = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3, "image_size": 8}
FAMILIES = {
    "ViT-Ti/4": SMALL,
    "ViT-S/4": SMALL | {"gelu": "exact", "scan": True},
    "R50x1": {"units": (1, 2), "root_width": 32, "num_classes": 3, "image_size": 32},
    "EfficientNet-B0": {"num_classes": 3, "image_size": 32},
    **{f"ViT-Ti/4 of {n} channels": SMALL | {"channels": n} for n in (1, 4, 13)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_models(tmp_path, name):
    loaded = randomised(name.partition(" ")[0], **FAMILIES[name])
    path = tmp_path / "new" / "model.tflite"
    tflite.save(loaded, path, batch_size=2)
    height, width = loaded.model.preprocess.image_size
    shape = (2, height, width, loaded.model.spec.channels)
    images = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    expected = np.asarray(jax.jit(loaded.model)(images))
    assert np.isfinite(expected).all()
    about = json.loads(zipfile.ZipFile(path).read("about.json"))
    assert (about["class_names"], about["batch_size"]) == (["ant", "bee", "cat"], 2)
    assert about["preprocess"]["image_size"] == [height, width]
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    found = litert.Interpreter(str(path)).get_signature_runner()(images=images)["logits"]
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, atol=LOGITS * scale, rtol=0)
