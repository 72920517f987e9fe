"""Pictures of features: norms, colours, neighbours, maps, CKA, mistakes, development."""

import numpy as np
import pytest

from tests.draw.figures.drawn import check, heat, photos
from tests.draw.figures.inside_test import LONG
from vit_jax.draw.figures import (
    cka,
    development,
    features,
    image_map,
    mistakes,
    neighbours,
    norms,
)

rng = np.random.default_rng(0)


@pytest.mark.parametrize("number", [1, 4])
def test_norms_frame_what_stands_out(number):
    lengths = 10 + heat(number)
    lengths[0, 2, 3] = 500
    figure = check(
        lambda: norms.norms(photos(number), lengths, lengths > 30, [LONG] * number),
        "norm of the token (no unit)",
        "patches stand out",
    )
    (frame,) = [patch for axes in figure.axes for patch in axes.patches if axes.images]
    assert frame.get_xy() == (2.5, 1.5)


@pytest.mark.parametrize("length", [1, 0])
def test_norms_of_equal_length(length):
    lengths, none = np.full((1, 3, 4), length), np.zeros((1, 3, 4), bool)
    check(lambda: norms.norms(photos(1), lengths, none, ["a"]))


@pytest.mark.parametrize("depth", [1, 12])
def test_norms_by_layer(depth):
    others = {"class token": rng.uniform(1, 9, depth), "register 1": rng.uniform(1, 900, depth)}
    lengths = rng.uniform(1, 30, (depth, 99))
    check(
        lambda: norms.norms_by_layer(lengths, others=others, threshold=90),
        "network depth (layer)",
        "norm of the token (no unit)",
        "class token",
        "register 1",
        "stands out",
    )


@pytest.mark.parametrize("number", [1, 4])
def test_features(number):
    colours = rng.random((number, 3, 4, 3))
    check(
        lambda: features.features(photos(number), colours, [LONG] * number),
        "principal components",
        "Hungarian pointer",
    )


@pytest.mark.parametrize("k", [1, 5])
def test_neighbours(k):
    indices = np.arange(2 * k).reshape(2, k)
    check(
        lambda: neighbours.neighbours(photos(12), [10, 11], indices, indices / 100, [LONG] * 12),
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
        lambda: image_map.image_map(points, photos(number), labels=labels),
        "first component (no unit)",
        "second component (no unit)",
        f"{number} images",
        *(["other classes"] if classes == 20 and number > 7 else []),
    )
    (axes,) = figure.axes
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == number
    boxes = np.array([image.get_extent() for image in axes.images])
    assert len(boxes) == number if number == 3 else len(boxes) > 20
    assert boxes[:, [0, 2]].min() >= 0
    assert (boxes[:, [1, 3]].max(axis=0) <= image_map.MAP_IN).all()


def test_map_of_equal_images():
    check(lambda: image_map.image_map(np.zeros((5, 2)), photos(5)), "5 images")


@pytest.mark.parametrize("shape", [(12, 12), (2, 33), (24, 6), (1, 1)])
def test_cka(shape):
    values = rng.uniform(-0.1, 1, shape)
    values[0, 0] = np.nan
    names = [
        [f"{what} {k}" for k in range(n)] for what, n in zip(("block", LONG), shape, strict=True)
    ]
    figure = check(
        lambda: cka.cka(values, *names, models=("ViT-Ti/16", "R50x1"), note="17 images"),
        "CKA (linear",
        "ViT-Ti/16" if shape[0] > 1 else "",
        "R50x1",
        "17 images",
    )
    shown = figure.axes[0].images[0].get_array()
    assert shown.mask.sum() == 1
    np.testing.assert_array_equal(shown.data[~shown.mask], np.clip(values, 0, 1)[~shown.mask])


def test_cka_of_one_model():
    check(lambda: cka.cka(np.eye(12), [str(k + 1) for k in range(12)]), "layer", "12")


@pytest.mark.parametrize(("number", "seen"), [(1, True), (7, True), (2, False)])
def test_mistakes(number, seen):
    probabilities = np.tile([0.001, 0.98], (number, 1))
    maps = heat(number) if seen else None
    check(
        lambda: mistakes.mistakes(
            photos(number), maps, [LONG] * number, ["seen"] * number, probabilities
        ),
        "is Hungarian pointer",
        "probability of each class",
        *(["rollout"] if seen else []),
    )


@pytest.mark.parametrize("number", [1, 3])
def test_development(number):
    steps = [0, 10, 1_000_000]
    made = {
        "accuracy of the test": development.Quantity([1, 2, 3], "%"),
        "mean attention distance": development.Quantity(rng.random((3, 12)), "pixels"),
        "loss": development.Quantity(rng.random((3, 2)), "", ("test", LONG)),
    }
    check(
        lambda: development.curves(steps, dict(list(made.items())[:number])),
        "accuracy of the test (%)",
        "step",
        "1 M",
        *(["mean attention distance (pixels)", "12 layers"] if number > 1 else []),
    )
    check(
        lambda: development.pictures(
            range(number * 20),
            {"rollout": list(photos(number * 20)), LONG: list(heat(number * 20, 24, 32))},
        ),
        "step 0",
        f"step {number * 20 - 1}",
        "rollout",
    )
