"""ViT fields from later papers and from the paper's appendix, and the named backbones."""

import jax
import optax
import pytest

from tests.models.by_hand import info as info_of
from tests.models.every_model_test import BACKBONES
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.state import state_layout
from vit_jax.parallel.mesh import AXES

pytestmark = pytest.mark.usefixtures("quick_compilation")
AXIAL = [{"name": "Axial-ViT-Ti/4"}, {"name": "Axial-ViT-Ti/4", "pool": "map"}]


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_are_laid_out_over_a_mesh(name):
    size = 4 * models.spec(name).patch_size

    def make(rngs):
        return models.create(name, num_classes=8, image_size=size, rngs=rngs, scan=True)

    types = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.sharding.AbstractMesh((1, 2, 2, 2), AXES, axis_types=types)
    layout = state_layout(make, optax.identity(), mesh, ema_decay=None, shard_optimizer=False)
    for path, x in pytrees.flatten(layout.state.params).items():
        if path.endswith("kernel"):
            assert "fsdp" in str(x.sharding.spec), path
        if "mlp" in path and path.endswith("kernel"):
            assert "tensor" in str(x.sharding.spec), path


# --- backbones

# Millions of parameters without a head, as rounded in the authors' READMEs
# (facebookresearch/dinov2, dinov3).
MILLIONS = {
    "ViT-S/14-dinov2": 21, "ViT-B/14-dinov2": 86, "ViT-L/14-dinov2": 300,
    "ViT-g/14-dinov2": 1_100, "ViT-S/16-dinov3": 21, "ViT-S+/16-dinov3": 29, "ViT-B/16-dinov3": 86,
    "ViT-L/16-dinov3": 300, "ViT-H+/16-dinov3": 840, "ViT-7B/16-dinov3": 6_716,
}  # fmt: skip


@pytest.mark.parametrize("name", MILLIONS)
def test_backbones_have_the_published_size(name):
    millions = info_of(name, num_classes=0).parameters / 1e6
    assert abs(millions / MILLIONS[name] - 1) < 0.04


def test_vit_22b_has_the_published_size():
    """Table 1 of arXiv 2302.05442: 21,743 M, counting only the matrices of its blocks."""
    s = models.spec("ViT-22B/14")
    matrices = s.depth * (4 * s.width**2 + 2 * s.width * s.mlp_dim)
    assert round(matrices / 1e6) == 21_743
    assert info_of("ViT-22B/14").parameters == pytest.approx(matrices, rel=0.03)
