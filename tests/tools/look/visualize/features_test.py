"""Pictures of features: colours, neighbours, maps, CKA."""

import numpy as np
import pytest
from flax import nnx

from tests.draw.drawn import LONG, check, photos
from tests.messages import refused
from vit_jax import models
from vit_jax.tools.look.visualize.features import (
    draw_cka,
    draw_features,
    draw_map,
    draw_neighbours,
    patch_features,
)

ROUNDING = 1e-5  # another program computes the same
rng = np.random.default_rng(0)


def toy():
    small = {"depth": 2, "width": 16, "mlp_dim": 32, "num_heads": 2, "registers": 3}
    return models.create("ViT-Ti/4", num_classes=5, image_size=(8, 12), rngs=nnx.Rngs(0), **small)


@pytest.mark.parametrize("at", ["norm", "patches", "blocks/0", "blocks/1/mlp"])
def test_patches_at_an_activation(at):
    model, images = toy(), rng.normal(size=(3, 8, 12, 3)).astype(np.float32)
    found = patch_features(model, images, at)
    tokens = np.asarray(model.activations(images, [at])[at])
    assert found.shape == (3, 2, 3, 16)
    np.testing.assert_allclose(found.reshape(3, 6, 16), tokens[:, -6:], atol=ROUNDING)


@pytest.mark.parametrize("at", ["logits", "features"])
def test_an_activation_without_patches_is_refused(at):
    with refused(f"--at={at}", "patches"):
        patch_features(toy(), np.zeros((1, 8, 12, 3), np.float32), at)


@pytest.mark.parametrize("number", [1, 4])
def test_features(number):
    colours = rng.random((number, 3, 4, 3))
    check(
        lambda: draw_features(photos(number), colours, [LONG] * number),
        "principal components",
        "Hungarian pointer",
    )


@pytest.mark.parametrize("k", [1, 5])
def test_neighbours(k):
    indices = np.arange(2 * k).reshape(2, k)
    check(
        lambda: draw_neighbours(photos(12), [10, 11], indices, indices / 100, [LONG] * 12),
        "nearest",
        "cosine similarity",
        f"{(k - 1) / 100:.3f}",
    )


@pytest.mark.parametrize("number", [3, 60])
@pytest.mark.parametrize("classes", [0, 2, 20])
def test_map(number, classes):
    points = rng.normal(size=(number, 2)) * [1, 100]
    labels = [f"class {k % classes} {LONG}" for k in range(number)] if classes else None
    figure = check(
        lambda: draw_map(points, photos(number), labels=labels),
        "first component (no unit)",
        "second component (no unit)",
        f"{number} images",
        *(["other classes"] if classes == 20 and number > 7 else []),
    )
    (axes,) = figure.axes
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == number
    boxes = np.array([image.get_extent() for image in axes.images])
    assert len(boxes) > (2 if number == 3 else 12)
    ends = np.array([axes.get_xlim(), axes.get_ylim()])
    assert (boxes[:, [0, 2]].min(axis=0) > ends[:, 0]).all()
    assert (boxes[:, [1, 3]].max(axis=0) < ends[:, 1]).all()


@pytest.mark.parametrize("shape", [(12, 12), (2, 33), (24, 6), (1, 1)])
def test_cka(shape):
    values = rng.uniform(-0.1, 1, shape)
    values[0, 0] = np.nan
    names = [
        [f"{what} {k}" for k in range(n)] for what, n in zip(("block", LONG), shape, strict=True)
    ]
    figure = check(
        lambda: draw_cka(values, *names, models=("ViT-Ti/16", "R50x1"), note="17 images"),
        "CKA (linear",
        "ViT-Ti/16" if shape[0] > 1 else "",
        "R50x1",
        "17 images",
    )
    shown = figure.axes[0].images[0].get_array()
    assert shown.mask.sum() == 1
    np.testing.assert_array_equal(shown.data[~shown.mask], np.clip(values, 0, 1)[~shown.mask])
