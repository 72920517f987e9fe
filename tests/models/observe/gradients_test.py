"""Relevance for a class against float64 NumPy, with differences in place of gradients."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from tests.models.observe.by_formula import Forward
from tests.models.observe.toys import flat, random_images
from vit_jax import models
from vit_jax.models import observe

pytestmark = pytest.mark.usefixtures("quick_compilation")
STEP = 1e-5  # of differences to both sides in float64: exact to about its square
ROUNDING = 1e-4  # float32 gradients through two blocks; relative to the largest relevance
FIELDS = [
    {"pool": "avg", "position_embedding": "relative", "scan": True},
    {"pool": "map", "registers": 1, "position_embedding": "rotary_2d"},
    {"pool": "cls_avg", "layer_scale": 0.5, "qk_norm": True, "gelu": "exact"},
    {"distillation_token": True, "registers": 1},
    {"value_residual": 0.5, "pool": "avg"},
    {"parallel": True, "registers": 1, "position_at": "shared", "pre_logits": True},
    {"name": "Axial-ViT-Ti/4", "depth": 1},
]


def slopes(forward, image, target, where, shape):
    """The logit's derivatives by each of a layer's weights, by central differences."""
    size = int(np.prod(shape))
    steps = STEP * np.eye(size).reshape(size, *shape)
    forward.offsets = {where: np.concatenate([steps, -steps])}
    logits = forward(np.repeat(image[None], 2 * size, axis=0))[:, target]
    forward.offsets = {}
    return ((logits[:size] - logits[size:]) / (2 * STEP)).reshape(shape)


def expected_relevance(model, image, target):
    """Equations 5 and 6 of arXiv 2103.15679 as they stand: all tokens, first layer first."""
    forward, spec = Forward(model), model.spec
    forward(image[None])
    weights = [w[0] for w in forward.weights]
    read = forward.read[0] if spec.pool == "map" else None
    relevant = np.eye(weights[0].shape[-1])
    for layer, w in enumerate(weights):
        of_heads = np.maximum(w * slopes(forward, image, target, layer, w.shape), 0)
        relevant = relevant + of_heads.mean(axis=0) @ relevant
    patches = np.prod(forward.grid)
    if spec.pool == "map":
        of_heads = np.maximum(read * slopes(forward, image, target, "read", read.shape), 0)
        return of_heads.mean(axis=0) @ relevant[spec.registers :]
    of_patches = relevant[-patches:].mean(axis=0)
    heads = 1 + spec.distillation_token  # of whose tokens the logits are the mean
    return {
        "cls": relevant[:heads].mean(axis=0), "avg": of_patches,
        "cls_avg": (relevant[0] + of_patches) / 2,
    }[spec.pool]  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_relevance_equals_differences(toy, fields):
    model, images = toy(image_size=(8, 8), **fields), random_images(3, (8, 8))
    found = observe.relevance(model, images, (4, 0, 4))
    for image, target, row in zip(images, (4, 0, 4), flat(found.map), strict=True):
        expected = expected_relevance(model, image, target)
        np.testing.assert_allclose(row, expected, atol=ROUNDING * expected.max())
    np.testing.assert_array_equal(found.classes, (4, 0, 4))
    logits = Forward(model)(images)
    np.testing.assert_allclose(found.logits, logits, atol=1e-5 * np.abs(logits).max())


def test_bfloat16_is_near(toy):
    """Within the rounding of bfloat16, 2^-8, through two blocks and back."""
    fields, images = {"pool": "map", "image_size": (8, 8)}, random_images(2, (8, 8))
    exact = observe.relevance(toy(**fields), images, 1)
    found = observe.relevance(toy(dtype="bfloat16", scan=True, **fields), images, 1)
    assert found.logits.dtype == found.map.patches.dtype == np.float32
    limit = 2**-4 * flat(exact.map).max()
    np.testing.assert_allclose(flat(found.map), flat(exact.map), atol=limit)


def test_classes_and_chunks(toy):
    model, images = toy(), random_images(3)
    largest = observe.relevance(model, images)
    np.testing.assert_array_equal(largest.classes, largest.logits.argmax(-1))
    one = observe.chunks.bytes_per_image(model)
    again = observe.relevance(model, iter(images), largest.classes, memory_bytes=2 * one)
    np.testing.assert_allclose(again.map.patches, largest.map.patches, rtol=1e-4)
    of_one = observe.relevance(model, images, 3)
    assert of_one.classes.tolist() == [3, 3, 3]
    assert np.abs(of_one.map.patches - largest.map.patches).max() > 1e-3
    for classes, value in (
        (5, "class 5"),
        ((0, -1, 0), "class -1"),
        (0.5, "class 0.5"),
        ((1, 2), "as many"),
        ((1, 2, 3, 4), "as many"),
    ):
        with refused(value):
            observe.relevance(model, images, classes)
    with refused("head"):
        observe.relevance(toy(num_classes=0), images)


@pytest.fixture
def bit(drawn):
    make = lambda: models.create(
        "R50x1", units=(1, 1), root_width=32, num_classes=3, image_size=(24, 40), rngs=nnx.Rngs(0)
    )
    return drawn(make)


def test_grad_cam_of_a_bit(bit):
    """Its head is linear in the mean of the map, so the gradient is the class's weights."""
    images = random_images(2, (24, 40))
    features = np.asarray(jax.jit(bit.feature_map)(images), np.float64)
    tokens = jax.jit(bit.tokens)(images)
    np.testing.assert_array_equal(features.reshape(2, 15, -1), np.asarray(tokens))
    of_classes = np.asarray(bit.head.kernel[...], np.float64)[:, [2, 1]] / 15
    expected = np.maximum(np.einsum("bhwc,cb->bhw", features, of_classes), 0)
    found = observe.relevance(bit, images, (2, 1))
    assert expected.max() > 0
    np.testing.assert_allclose(found.map.patches, expected, atol=ROUNDING * expected.max())
    assert found.map.class_token.shape == found.map.registers.shape == (2, 0)
    np.testing.assert_allclose(found.logits, jax.jit(bit)(images), rtol=1e-4, atol=1e-4)
