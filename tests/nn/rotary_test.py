import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.nn.posemb import TokenLayout
from vit_jax.nn.rotary import Rotary2dPositions

ROUNDING = 1e-5  # float32 of angles up to 2 pi


def test_pairs_are_complex_numbers_that_are_turned_by_row_and_column():
    """With a head of 8 entries i and i + 4 are a pair; frequencies are 1 and 1 / sqrt(100)."""
    layout = TokenLayout((2, 3), class_token=True, registers=1)
    x = np.random.default_rng(0).normal(size=(2, 8, 3, 8)).astype(np.float32)
    turned = np.asarray(Rotary2dPositions(layout).rotate(jnp.asarray(x)))
    np.testing.assert_array_equal(turned[:, :2], x[:, :2])
    for row, y in enumerate((-1 / 2, 1 / 2)):  # centres of two rows, between -1 and 1
        for column, z in enumerate((-2 / 3, 0, 2 / 3)):
            angles = 2 * np.pi * np.array([y, y / 10, z, z / 10])
            token = 2 + 3 * row + column
            pairs = x[:, token, :, :4] + 1j * x[:, token, :, 4:]
            expected = pairs * np.exp(1j * angles)
            found = turned[:, token, :, :4] + 1j * turned[:, token, :, 4:]
            np.testing.assert_allclose(found, expected, atol=ROUNDING)


def test_products_depend_on_differences_of_places_alone():
    positions = Rotary2dPositions(TokenLayout((4, 4), False))
    one = lambda seed: jnp.tile(
        jax.random.normal(jax.random.key(seed), (1, 1, 1, 8)), (1, 16, 1, 1)
    )
    query, key = positions.rotate(one(0)), positions.rotate(one(1))
    products = np.asarray(query[0, :, 0] @ key[0, :, 0].T).reshape(4, 4, 4, 4)
    # [row, column] of the query, then of the key: both moved by one row and one column.
    np.testing.assert_allclose(products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], atol=1e-4)
    assert np.ptp(products) > 0.1


def test_the_tokens_keep_their_type():
    x = jnp.ones((1, 4, 2, 4), jnp.bfloat16)
    assert Rotary2dPositions(TokenLayout((2, 2), False)).rotate(x).dtype == jnp.bfloat16
