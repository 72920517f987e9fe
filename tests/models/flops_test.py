"""FLOPs of models.info, against XLA's own count over every product of the real program."""

import pytest
from flax import nnx

from vit_jax import models

WITHIN = 0.01
VIT = {"depth": 2, "width": 32, "mlp_dim": 64, "num_heads": 2}
RESNET = {"units": (1, 2), "root_width": 32}
TOYS = {
    "ViT-B/16": VIT | {"pre_logits": True, "scan": True},
    "R50+ViT-B/16": VIT | RESNET,
    "R+ViT-Ti/16": VIT,
    "R50x1": RESNET | {"scan": True},
}


@pytest.mark.parametrize(
    ("name", "side", "fields"),
    [(name, 32, toy) for name, toy in TOYS.items()]
    + [(name, 224, {}) for name in ("ViT-B/16", "R50+ViT-B/16", "R50x1")],
)
def test_flops_are_those_that_xla_counts(name, side, fields, xla_flops):
    size = (side, 2 * side)
    arguments = {"num_classes": 1000, "image_size": size} | fields

    def run(images):
        return models.create(name, rngs=nnx.Rngs(0), **arguments)(images)

    counted = xla_flops(run, (1, *size, 3))
    assert models.info(name, **arguments).forward_flops == pytest.approx(counted, rel=WITHIN)
