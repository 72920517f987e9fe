"""Trained weights, as released, through every format and back."""

import dataclasses
from pathlib import Path

import pytest

from vit_jax import weights

TRAINED = Path(__file__).parents[3] / "shared/data/vit_ti16_augreg"


@pytest.mark.slow
@pytest.mark.skipif(not TRAINED.is_dir(), reason=f"{TRAINED} is not there")
@pytest.mark.parametrize("to", ["huggingface", "timm", "google_npz", "checkpoint"])
def test_there_and_back_are_the_same_bits(tmp_path, same, to):
    trained = weights.load_with_info(TRAINED)
    loaded = trained._replace(class_names=tuple(f"class {i}" for i in range(1000)))
    if to == "google_npz":  # whose readers compute the tanh form of GELU, and know no names
        loaded.model.spec = dataclasses.replace(loaded.model.spec, gelu="tanh")
        loaded = loaded._replace(class_names=None)
    path = tmp_path / "out.npz"
    weights.save(loaded, path, to)
    again = weights.load_with_info(path)
    same(again.model, loaded.model)
    assert again.name == "ViT-Ti/16"
    assert again.model.spec == loaded.model.spec
    assert again.class_names == loaded.class_names
    if to == "google_npz":  # which says nothing of images
        return
    expected = loaded.model.preprocess
    if to == "huggingface":  # whose crops always round down
        expected = dataclasses.replace(expected, middle="down")
    assert again.model.preprocess == expected
