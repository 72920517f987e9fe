"""Axial models are saved as checkpoints, and in no other project's format."""

from tests.messages import refused
from tests.weights.conftest import TOY, randomised
from vit_jax import weights

MODELS = {
    "Axial-ViT-Ti/4": TOY,
    "AxialResNet-1-2": {"root_width": 32, "num_heads": 4, "num_classes": 3, "image_size": 24},
}


def test_other_image_sizes(tmp_path):
    """Positions of an Axial-ViT are resized, offsets of an AxialResNet are not."""
    for name, fields in MODELS.items():
        weights.save(randomised(name, **fields), tmp_path / name.partition("/")[0], "checkpoint")
    larger = weights.load(tmp_path / "Axial-ViT-Ti", image_size=24)
    assert larger.positions.embedding.shape == (36, 16)
    with refused("offsets"):
        weights.load(tmp_path / "AxialResNet-1-2", image_size=48)
