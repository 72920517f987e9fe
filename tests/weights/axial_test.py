"""Axial models are saved as checkpoints, and in no other project's format."""

import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import TOY, params_of, randomised
from vit_jax import weights

MODELS = {
    "Axial-ViT-Ti/4": TOY,
    "AxialResNet-1-2": {"root_width": 32, "num_heads": 4, "num_classes": 3, "image_size": 24},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_read_back(tmp_path, name):
    loaded = randomised(name, **MODELS[name])
    weights.save(loaded, tmp_path / "out", "checkpoint")
    again = weights.load(tmp_path / "out")
    assert again.spec == loaded.model.spec
    ours, theirs = params_of(loaded.model), params_of(again)
    assert ours.keys() == theirs.keys()
    for key, x in ours.items():
        np.testing.assert_array_equal(theirs[key], x)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("to", ["huggingface", "timm", "google_npz"])
def test_other_formats_have_no_such_model(tmp_path, name, to):
    path = tmp_path / ("x.npz" if to == "google_npz" else "out")
    with refused(to, name):
        weights.save(randomised(name, **MODELS[name]), path, to)
    assert not list(tmp_path.iterdir())


def test_other_image_sizes(tmp_path):
    """Positions of an Axial-ViT are resized, offsets of an AxialResNet are not."""
    for name, fields in MODELS.items():
        weights.save(randomised(name, **fields), tmp_path / name.partition("/")[0], "checkpoint")
    larger = weights.load(tmp_path / "Axial-ViT-Ti", image_size=24)
    assert larger.positions.embedding.shape == (36, 16)
    with refused():
        weights.load(tmp_path / "AxialResNet-1-2", image_size=48)
