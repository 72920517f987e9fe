import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.nn.posemb import (
    LearnedPositions,
    SinCos1dPositions,
    SinCos2dPositions,
    TokenLayout,
    sincos_1d,
    sincos_2d,
)

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


def test_sincos_2d_at_the_smallest_width():
    np.testing.assert_allclose(sincos_2d((1, 2), 4)[1], [math.sin(1), math.cos(1), 0, 1])


def test_a_class_token_has_no_place_in_2d_and_the_first_in_1d():
    x = jnp.zeros((2, 7, 8))
    two = SinCos2dPositions(TokenLayout((2, 3), True))(x)
    assert not two[:, 0].any()
    np.testing.assert_allclose(two[0, 1:], sincos_2d((2, 3), 8), atol=ROUNDING)
    without = SinCos2dPositions(TokenLayout((2, 3), False))(x[:, 1:])
    np.testing.assert_array_equal(without, two[:, 1:])
    one = SinCos1dPositions()(x)
    np.testing.assert_allclose(one[0, 0], [0, 1] * 4)
    np.testing.assert_allclose(one[1], sincos_1d(7, 8), atol=ROUNDING)


def test_fixed_positions_are_no_parameters():
    assert not nnx.state(SinCos1dPositions())
    assert not nnx.state(SinCos2dPositions(TokenLayout((2, 3), True)))
    assert nnx.state(LearnedPositions(7, 8, rngs=nnx.Rngs(0)))


def test_the_tokens_keep_their_type():
    x = jnp.zeros((1, 6, 8), jnp.bfloat16)
    for positions in (
        LearnedPositions(6, 8, rngs=nnx.Rngs(0)),
        SinCos1dPositions(),
        SinCos2dPositions(TokenLayout((2, 3), False)),
    ):
        assert positions(x).dtype == jnp.bfloat16
