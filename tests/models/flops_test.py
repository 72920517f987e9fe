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
    "Axial-ViT-B/16": VIT | {"scan": True},
    "AxialResNet-50": RESNET | {"num_heads": 4, "scan": True},
    "EfficientNet-0.5x0.6": {"scan": True},
    "EfficientNet-0.25x0.1": {"padding": "symmetric"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "fields"),
    [(name, 32, toy) for name, toy in TOYS.items()]
    + [
        ("ViT-B/16", 224, {"scan": True}),
        ("R50+ViT-B/16", 224, {"scan": True}),
        ("R50x1", 224, {}),
        ("Axial-ViT-B/16", 224, {}),
        ("AxialResNet-50", 224, {}),
        ("EfficientNet-B0", 224, {}),
    ],
)
def test_flops_are_those_that_xla_counts(name, side, fields, xla_flops):
    size = (side, 2 * side)
    arguments = {"num_classes": 1000, "image_size": size} | fields

    def run(images):
        return models.create(name, rngs=nnx.Rngs(0), **arguments)(images)

    counted = xla_flops(run, (1, *size, 3))
    assert models.info(name, **arguments).forward_flops == pytest.approx(counted, rel=WITHIN)


def test_the_last_block_computes_what_the_head_sees_alone(xla_flops):
    """Attention's products and all behind it are of one token: keys and values are of all."""
    arguments = {"num_classes": 10, "image_size": 224, "depth": 2}

    def flops(**fields):
        def run(images):
            return models.create("ViT-Ti/16", rngs=nnx.Rngs(0), **arguments | fields)(images)

        return xla_flops(run, (1, 224, 224, 3))

    tokens, d = 197, 192
    # Attention's two products, the projection behind it and the MLP.
    of_a_token = 2 * (2 * tokens * d + d * d + 8 * d * d)
    assert flops(scan=True) - flops() == pytest.approx((tokens - 1) * of_a_token, rel=WITHIN)
    assert flops(pool="avg") == pytest.approx(flops(pool="avg", scan=True), rel=1e-3)
