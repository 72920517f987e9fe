import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.nn.posemb import (
    METHODS,
    TokenLayout,
    check_resizable,
    is_table,
    places_axis,
    resize,
    resize_positions,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROUNDING = 1e-5  # float32 sums of at most 16 products of numbers of about 1


def at_centres(f, grid):
    """[N, 1]: f of the height and width (each 0 to 1) of the patches' centres in the image."""
    rows, columns = ((np.arange(n) + 0.5) / n for n in grid)
    return jnp.asarray([[f(y, x)] for y in rows for x in columns], jnp.float32)


def inner(table, grid):
    return np.asarray(table).reshape(grid)[3:-3, 3:-3]


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("new", [(12, 18), (10, 8)])
def test_a_plane_stays_a_plane(method, new):
    """Away from the edges, where the methods lack old centres on one side.

    Not PyTorch's: of the cubic kernels only the one with a = -1/2 keeps planes (Keys, 1981), and no
    kernel that antialias has stretched does. posemb_test.py compares these with PyTorch's numbers.
    """
    plane = lambda y, x: 2 * y - 3 * x
    old = (6, 9)
    resized = resize_positions(
        at_centres(plane, old), TokenLayout(old, False), TokenLayout(new, False), method=method
    )
    expected = at_centres(plane, new)
    np.testing.assert_allclose(inner(resized, new), inner(expected, new), atol=ROUNDING)


def test_bilinear_between_two_rows():
    """Centres at 1/4 and 3/4 of the image become 1/8, 3/8, 5/8, 7/8; the outer values extend."""
    table = jnp.asarray([[0.0], [1.0]])
    resized = resize_positions(
        table, TokenLayout((2, 1), False), TokenLayout((4, 1), False), method="bilinear"
    )
    np.testing.assert_allclose(resized[:, 0], [0, 0.25, 0.75, 1], atol=ROUNDING)


def test_rows_and_columns_are_not_mixed_up():
    table = at_centres(lambda y, x: 10 * (y > 0.5) + (x > 0.5), (2, 2))
    resized = resize_positions(
        table, TokenLayout((2, 2), False), TokenLayout((2, 4), False), method="bilinear"
    )
    expected = [[0, 0.25, 0.75, 1], [10, 10.25, 10.75, 11]]
    np.testing.assert_allclose(resized.reshape(2, 4), expected, atol=ROUNDING)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_changes_at_the_same_size(method):
    table = jax.random.normal(jax.random.key(0), (7, 4))
    layout = TokenLayout((2, 3), True)
    np.testing.assert_array_equal(resize_positions(table, layout, layout, method=method), table)


def test_the_class_tokens_row_stays_or_is_left_out():
    table = jax.random.normal(jax.random.key(0), (7, 4))
    old = TokenLayout((2, 3), True)
    resize = lambda new: resize_positions(table, old, new, method="bilinear")
    larger = resize(TokenLayout((4, 6), True))
    np.testing.assert_array_equal(larger[0], table[0])
    np.testing.assert_array_equal(resize(TokenLayout((4, 6), False)), larger[1:])
    np.testing.assert_array_equal(resize(TokenLayout((2, 3), False)), table[1:])


def test_methods_differ():
    """To a smaller grid, as antialias leaves larger ones alone."""
    table = jax.random.normal(jax.random.key(0), (64, 4))
    old, new = TokenLayout((8, 8), False), TokenLayout((5, 5), False)
    resized = [resize_positions(table, old, new, method=method) for method in METHODS]
    for one, other in itertools.combinations(resized, 2):
        assert not np.allclose(one, other, atol=0.01)


OLD, NEW = TokenLayout((2, 3), True), TokenLayout((4, 6), True, registers=2)


def test_tables_are_known_by_name():
    assert is_table("positions/embedding")
    assert is_table("blocks/block/positions/rows")
    assert not is_table("positions/offsets")
    assert not is_table("pooling/embedding")
    assert (places_axis("positions/rows"), places_axis("blocks/block/positions/rows")) == (0, 1)


@pytest.mark.parametrize(("leaf", "old", "new"), [("rows", 2, 4), ("columns", 3, 6)])
def test_rows_and_columns_are_resized_along_their_side(leaf, old, new):
    """Equals the table of the grid, which is interpolated along one side after the other."""
    table = jax.random.normal(jax.random.key(0), (old, 4))
    resized = resize(f"positions/{leaf}", table, OLD, NEW, method="bilinear")
    grid = table[:, None] if leaf == "rows" else table[None]
    whole = jnp.broadcast_to(grid, (2, 3, 4)).reshape(6, 4)
    without = resize_positions(
        whole, TokenLayout((2, 3), False), TokenLayout((4, 6), False), method="bilinear"
    ).reshape(4, 6, 4)
    expected = without[:, 0] if leaf == "rows" else without[0]
    assert resized.shape == (new, 4)
    np.testing.assert_allclose(resized, expected, atol=ROUNDING)


def test_tables_of_layers_are_resized_one_by_one():
    tables = jax.random.normal(jax.random.key(0), (3, 7, 4))
    resized = resize("blocks/block/positions/embedding", tables, OLD, NEW, method="bicubic")
    for one, table in zip(resized, tables, strict=True):
        np.testing.assert_allclose(
            one, resize_positions(table, OLD, NEW, method="bicubic"), atol=ROUNDING
        )


def test_offsets_cannot_be_resized():
    check_resizable("positions/offsets", (9, 4), (9, 4))
    check_resizable("positions/embedding", (9, 4), (5, 4))
    with pytest.raises(UserError, match="Keep the image size of the weights"):
        check_resizable("positions/offsets", (9, 4), (5, 4))
