"""Pictures of what is inside a model: filters, positions, attention."""

import numpy as np
import pytest

from tests.draw.figures.drawn import check, heat, photos, texts
from vit_jax.draw.figures import distance, filters, positions
from vit_jax.draw.figures import heat as heat_figures

LONG = "Hungarian pointer, vizsla, Magyar vizsla $5 _long_ name 漢字\twith\nlines " * 3


@pytest.mark.parametrize(("number", "side"), [(28, 16), (5, 2), (1, 7)])
def test_filters(number, side):
    pictures = np.random.default_rng(0).normal(size=(number, side, side, 3))
    figure = check(
        lambda: filters.filters(pictures, np.full(number, 0.02), what="first convolution"),
        "Principal components of the first convolution",
        f"{number} component",
        "2.0%",
        "below each its share",
    )
    assert not any("…" in text.get_text() for text in texts(figure))


@pytest.mark.parametrize("grid", [(3, 4), (1, 5), (20, 18)])
def test_positions(grid):
    cosines = np.random.default_rng(0).uniform(-1, 1, (*grid, *grid))
    figure = check(
        lambda: positions.positions(cosines, note="rows plus columns: 99.8%"),
        "column of the input patch",
        "row of the input patch" if grid[0] > 2 else "row",
        "cosine similarity",
        "rows plus columns: 99.8%",
    )
    (mosaic,) = figure.axes[0].get_images()
    shown = mosaic.get_array()
    np.testing.assert_array_equal(shown[: grid[0], : grid[1]], cosines[0, 0])
    np.testing.assert_array_equal(shown[-grid[0] :, -grid[1] :], cosines[-1, -1])


@pytest.mark.parametrize(("depth", "heads"), [(12, 3), (1, 1), (32, 16)])
def test_distance_has_a_dot_per_head_in_pixels(depth, heads):
    distances = np.random.default_rng(0).uniform(10, 160, (depth, heads))
    figure = check(
        lambda: distance.distance(distances, images=17, uniform=116.0),
        "network depth (layer)",
        "mean attention distance (pixels)",
        f"{heads} head",
        "17 images",
    )
    dots = figure.axes[0].collections[0].get_offsets()
    assert len(dots) == depth * heads
    np.testing.assert_allclose(sorted(dots[:, 1]), np.sort(distances.ravel()))
    np.testing.assert_array_equal(np.round(dots[:, 0]), np.repeat(np.arange(depth) + 1, heads))


@pytest.mark.parametrize("number", [1, 5])
def test_overlays(number):
    maps = {"rollout": heat(number), "relevance": heat(number, seed=2)}
    check(
        lambda: heat_figures.overlays(photos(number), maps, [LONG] * number),
        "photo",
        "rollout",
        "relevance",
        "share of the largest in the image",
        "…",
    )


@pytest.mark.parametrize(("heads", "query"), [(3, (2, 1)), (12, None)])
def test_attention_of_a_layer(heads, query):
    shown = "row 3, column 2" if query else "the class token"
    figure = check(
        lambda: heat_figures.attention(photos(1)[0], heat(heads), query=query, layer=6),
        "Attention of layer 6",
        shown,
        f"head {heads}",
        "share of the largest in the head",
    )
    frames = [patch for axes in figure.axes for patch in axes.patches]
    assert len(frames) == (2 * (heads + 1) if query else 0)


def test_heat_is_where_it_belongs():
    photo = np.full((40, 60, 3), 128, np.uint8)
    one = np.zeros((4, 6))
    one[1, 4] = 1
    light = heat_figures.blend(photo, one).astype(int).sum(axis=-1)
    assert np.unravel_index(light.argmax(), light.shape)[0] in range(10, 20)
    assert np.unravel_index(light.argmax(), light.shape)[1] in range(40, 50)
    relative = heat_figures.relative
    assert relative(np.array([[0.0, np.nan], [2.0, -1.0]])).tolist() == [[0, 0], [1, 0]]
    assert not relative(np.zeros((2, 2))).any()
