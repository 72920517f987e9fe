"""Pictures of filters and positions."""

import numpy as np
import pytest

from tests.draw.drawn import check, texts
from vit_jax.draw.weight_pictures import draw_filters, draw_positions


@pytest.mark.parametrize(("number", "side"), [(28, 16), (5, 2), (1, 7)])
def test_filters(number, side):
    pictures = np.random.default_rng(0).normal(size=(number, side, side, 3))
    figure = check(
        lambda: draw_filters(pictures, np.full(number, 0.02), what="first convolution"),
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
        lambda: draw_positions(cosines, note="rows plus columns: 99.8%"),
        "column of the input patch",
        "row of the input patch" if grid[0] > 2 else "row",
        "cosine similarity",
        "rows plus columns: 99.8%",
    )
    (mosaic,) = figure.axes[0].get_images()
    assert mosaic.get_clim() == (-1, 1)  # as the bar says
    shown = mosaic.get_array()
    np.testing.assert_array_equal(shown[: grid[0], : grid[1]], cosines[0, 0])
    np.testing.assert_array_equal(shown[-grid[0] :, -grid[1] :], cosines[-1, -1])
