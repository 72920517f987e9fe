import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax.models.layers.posemb import (
    Learned2dPositions,
    LearnedPositions,
    SinCosPositions,
    TokenLayout,
    sincos_1d,
    sincos_2d,
)
from vit_jax.models.layers.relative import Relative2dPositions, RelativeMlpPositions
from vit_jax.models.layers.resized_positions import (
    METHODS,
    check_resizable,
    resize,
    resize_positions,
)
from vit_jax.models.vit import ViTSpec

SIZES = {"patch_size": 4, "depth": 1, "width": 8, "mlp_dim": 8, "num_heads": 4}
ROUNDING = 1e-6  # float32 of numbers up to 1


def test_sincos_1d_is_the_formula():
    table = sincos_1d(7, 6)
    for place in range(7):
        for i in range(3):
            angle = place / 10_000 ** (2 * i / 6)
            assert table[place, 2 * i] == pytest.approx(math.sin(angle))
            assert table[place, 2 * i + 1] == pytest.approx(math.cos(angle))


def test_sincos_2d_is_a_quarter_each_of_sines_and_cosines_of_column_and_row():
    table = sincos_2d((2, 3), 12)
    frequencies = (1, 1e-2, 1e-4)
    for row in range(2):
        for column in range(3):
            expected = [f(c * w) for c in (column, row) for f in (math.sin, math.cos)
                        for w in frequencies]  # fmt: skip
            np.testing.assert_allclose(table[3 * row + column], expected)


def test_a_class_token_has_no_place_in_2d_and_the_first_in_1d():
    x = jnp.zeros((2, 7, 8))
    in_1d, in_2d = (ViTSpec(**SIZES, position_embedding=f"sincos_{n}d") for n in (1, 2))
    two = SinCosPositions(in_2d, TokenLayout((2, 3), True))(x)
    assert not two[:, 0].any()
    np.testing.assert_allclose(two[0, 1:], sincos_2d((2, 3), 8), atol=ROUNDING)
    without = SinCosPositions(in_2d, TokenLayout((2, 3), False))(x[:, 1:])
    np.testing.assert_array_equal(without, two[:, 1:])
    one = SinCosPositions(in_1d, TokenLayout((2, 3), True))(x)
    np.testing.assert_allclose(one[0, 0], [0, 1] * 4)
    np.testing.assert_allclose(one[1], sincos_1d(7, 8), atol=ROUNDING)


def test_biases_of_offsets_are_of_rows_and_columns():
    layout = TokenLayout((2, 3), class_token=True, registers=1)
    positions = Relative2dPositions(ViTSpec(**SIZES), layout, nnx.Rngs(0))
    query, table = jnp.zeros((5, 8, 4, 2)), positions.offsets_2d[...]
    bias = positions.bias(query)
    assert (bias.shape, table.shape) == ((1, 4, 8, 8), (3 * 5 + 3, 4))
    for a, b in ((0, 5), (4, 2), (3, 3)):  # patches
        down, right = a // 3 - b // 3, a % 3 - b % 3
        np.testing.assert_array_equal(bias[0, :, 2 + a, 2 + b], table[(down + 1) * 5 + right + 2])
    for place, row in (((0, 4), 15), ((1, 2), 15), ((5, 0), 16), ((0, 1), 17), ((0, 0), 17)):
        np.testing.assert_array_equal(bias[0, :, place[0], place[1]], table[row])
    by_mlp = RelativeMlpPositions(ViTSpec(**SIZES), layout, nnx.Rngs(0)).bias(query)
    assert not by_mlp[:, :, :2].any() and not by_mlp[:, :, :, :2].any()
    np.testing.assert_array_equal(by_mlp[0, :, 2, 3], by_mlp[0, :, 6, 7])  # one column apart
    assert (by_mlp[0, :, 2, 3] != by_mlp[0, :, 3, 2]).any()


@pytest.mark.parametrize("kind", [LearnedPositions, Learned2dPositions, SinCosPositions])
def test_registers_have_no_position(kind):
    """Registers lie between the class token and the patches, whose positions are unchanged."""
    layout = TokenLayout((2, 3), True)
    positions = kind(ViTSpec(**SIZES, position_embedding="sincos_1d"), layout, nnx.Rngs(0))
    without = positions(jnp.zeros((1, 7, 8)))[0]
    positions.layout = TokenLayout((2, 3), True, registers=2)
    table = positions(jnp.zeros((1, 9, 8)))[0]
    assert not table[1:3].any()
    np.testing.assert_array_equal(jnp.delete(table, jnp.array([1, 2]), axis=0), without)


@pytest.mark.parametrize(
    ("method", "smaller", "larger"),
    [
        ("bicubic_torch", [[0.62622, 3.02989], [0.91365, 0.70203]],
         [0.99911, 2.63129, 4.28711, 2.97162, 1.54443]),
        ("bicubic_antialias", [[0.46065, 3.14614], [0.454, 1.23395]],
         [0.98254, 2.36712, 4.20896, 2.80736, 1.66474]),
    ],
)  # fmt: skip
def test_resizing_as_pytorch(method, smaller, larger):
    """torch.nn.functional.interpolate(mode="bicubic", align_corners=False) of torch 2.13."""
    table = jnp.array([[1, 4, 2], [-3, 0, 5], [2, 2, -1.0]])[..., None]
    np.testing.assert_allclose(METHODS[method](table, (2, 2, 1))[..., 0], smaller, atol=1e-5)
    np.testing.assert_allclose(METHODS[method](table, (4, 5, 1))[0, :, 0], larger, atol=1e-5)


pytestmark = pytest.mark.usefixtures("quick_compilation")
RESIZED_ROUNDING = 1e-5  # float32 sums of at most 16 products of numbers of about 1


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
    np.testing.assert_allclose(inner(resized, new), inner(expected, new), atol=RESIZED_ROUNDING)


def test_rows_and_columns_are_not_mixed_up():
    table = at_centres(lambda y, x: 10 * (y > 0.5) + (x > 0.5), (2, 2))
    resized = resize_positions(
        table, TokenLayout((2, 2), False), TokenLayout((2, 4), False), method="bilinear"
    )
    expected = [[0, 0.25, 0.75, 1], [10, 10.25, 10.75, 11]]
    np.testing.assert_allclose(resized.reshape(2, 4), expected, atol=RESIZED_ROUNDING)


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


OLD, NEW = TokenLayout((2, 3), True), TokenLayout((4, 6), True, registers=2)


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
    np.testing.assert_allclose(resized, expected, atol=RESIZED_ROUNDING)


def test_tables_of_layers_are_resized_one_by_one():
    tables = jax.random.normal(jax.random.key(0), (3, 7, 4))
    resized = resize("blocks/block/positions/embedding", tables, OLD, NEW, method="bicubic")
    for one, table in zip(resized, tables, strict=True):
        np.testing.assert_allclose(
            one, resize_positions(table, OLD, NEW, method="bicubic"), atol=RESIZED_ROUNDING
        )


def test_biases_of_offsets_are_resized():
    """Of 2 x 3 patches for 3 x 5: offsets of nothing and of one patch keep theirs."""
    old, new = TokenLayout((2, 3), True, registers=1), TokenLayout((3, 5), True, registers=1)
    table = jax.random.normal(jax.random.key(0), (3 * 5 + 3, 4))
    resized = resize("positions/offsets_2d", table, old, new, method="bicubic")
    assert resized.shape == (5 * 9 + 3, 4)
    np.testing.assert_array_equal(resized[-3:], table[-3:])  # of class token and register
    before, after = table[:-3].reshape(3, 5, 4), resized[:-3].reshape(5, 9, 4)
    np.testing.assert_allclose(after[1:4, 3:6], before[:, 1:4], atol=RESIZED_ROUNDING)
    without = TokenLayout((3, 5), False)
    alone = resize("positions/offsets_2d", table, old, without, method="bicubic")
    np.testing.assert_array_equal(alone, resized[:-3])


def test_offsets_cannot_be_resized():
    check_resizable("positions/offsets", (9, 4), (9, 4), same_grid=True)
    check_resizable("positions/embedding", (9, 4), (5, 4), same_grid=False)
    for new, same_grid in (((5, 4), True), ((9, 4), False)):  # 2 x 4 patches, then 4 x 2
        with refused("positions/offsets"):
            check_resizable("positions/offsets", (9, 4), new, same_grid=same_grid)
