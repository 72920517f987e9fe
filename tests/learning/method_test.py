"""What methods compute for an example, against the models' closed forms and sums by hand."""

import dataclasses
import types

import pytest

from tests.models.training_test import KINDS, toy
from vit_jax import models
from vit_jax.config import resolve
from vit_jax.learning.method import LossOutput, Method, Sizes
from vit_jax.learning.method_products import count_products
from vit_jax.parallel.products import Products
from vit_jax.run.parts import networks, updates

# Of one image, for what a batch shares: a map's probe, positions of other sizes.
SHARED = 1e-3


@dataclasses.dataclass(frozen=True)
class Outputs(Method):
    """As labels are learnt from, by a model's logits."""

    def loss(self, model, inputs, key, context):
        del context
        return LossOutput(model(inputs.images, train=True, rngs=key).sum(-1), {})


@pytest.mark.parametrize("name", KINDS)
def test_the_count_of_a_forward_pass_is_the_closed_form(name):
    fields = toy(name)
    own = models.spec(name, **fields)
    changes = {"scan": True, "attention": "xla"}
    fields |= {k: v for k, v in changes.items() if hasattr(own, k)}
    size = (own.stride, 2 * own.stride)
    make = lambda rngs: models.create(name, num_classes=7, image_size=size, rngs=rngs, **fields)
    found = count_products(
        Outputs(), make, Sizes(size), batch_size=4, num_classes=7, has_average=False, teacher=None
    )
    assert found == Products(pytest.approx(models.forward_flops(own, 7, size), rel=SHARED))


TEACHER = types.SimpleNamespace(forward_flops=12_345, num_classes=10)


def products(*overrides, teacher=None, classes=10):
    """The model's figures, and what is counted."""
    config = resolve(
        {
            "model": {"name": "ViT-Ti/2", "depth": 3, "width": 32, "mlp_dim": 64, "num_heads": 2},
            "input": {"preprocess": "decode|resize(8)", "batch_size": 4},
            "total": {"steps": 10},
        },
        overrides,
    )
    model = networks.model(config, num_classes=classes)
    return model.info, updates.products(config, model, teacher)


def blocks(depth, tokens, width, hidden):
    return depth * 2 * (tokens * (4 * width**2 + 2 * width * hidden) + 2 * tokens**2 * width)


def test_mae_encodes_a_quarter_and_decodes_all():
    fields = ("decoder_width=16", "decoder_depth=2", "decoder_heads=2")
    _, found = products("method.kind=mae", *(f"method.{f}" for f in fields))
    embedded = 2 * 16 * 12 * 32  # all 16 patches of 2 x 2 x 3 numbers
    encoded = blocks(3, 1 + 4, 32, 64)
    decoded = blocks(2, 1 + 16, 16, 64) + 2 * (1 + 4) * 32 * 16 + 2 * 16 * 16 * 12
    assert found == Products(embedded + encoded + decoded)


def test_masked_patches_are_seen_and_predicted():
    info, found = products("method.kind=masked_patch", "input.batch_size=4096")
    assert found == Products(info.forward_flops + 2 * 16 * 32 * 512)


def test_dino_sees_all_views_and_its_teacher_the_large_ones():
    """Positions are none: others would be interpolated for small views, once a batch."""
    crop = "decode|random_resized_crop"
    info, found = products(
        "method.kind=dino", "method.prototypes=50", "method.head_hidden=24",
        "method.head_bottleneck=12", "model.position_embedding=none",
        f"input.views=['{crop}(8)', '{crop}(4)', '{crop}(4)']",
    )  # fmt: skip
    large, small = info.forward_flops, blocks(3, 1 + 4, 32, 64) + 2 * 4 * 12 * 32
    head = 2 * (32 * 24 + 24 * 24 + 24 * 12 + 12 * 50)
    compared = 2 * (2 * 4) * 50  # each of two targets with each of four views
    told = 2 * (2 * 50) + 2 * 50  # how much the teacher tells, which is logged
    assert found == Products(2 * large + 2 * small + 4 * head + compared, 2 * (large + head) + told)


@pytest.mark.parametrize("hard", [False, True])
def test_distillation_adds_its_teachers_forward_pass(hard):
    fields = ("method.kind=distillation", "method.teacher=x", f"method.hard={hard}")
    info, found = products(*fields, teacher=TEACHER)
    assert found == Products(info.forward_flops, 12_345)
