"""Products counted from programs, against numbers that are known."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from vit_jax.parallel.products import Products, count

W, X = jnp.ones([4, 8]), jnp.ones([2, 4])
ONE = 2 * 2 * 4 * 8  # FLOPs of X @ W


def counted(f, *arguments):
    """Of a loss, or of it and other numbers, by the gradient by the first argument."""
    program, outputs = jax.make_jaxpr(f, return_shape=True)(*arguments)
    is_first = lambda leaves: [i == 0 for i, _ in enumerate(leaves)]
    return count(program, is_first(arguments), is_first(jax.tree.leaves(outputs)))


@jax.custom_vjp
def by_hand(w, x):
    return jnp.sum(x @ w)


by_hand.defvjp(lambda w, x: (by_hand(w, x), (w, x)), lambda saved, dy: (dy * saved[0], None))


def repeated(w, x):
    return lax.scan(lambda total, x: (total + jnp.sum(x @ w), None), 0.0, jnp.stack([x] * 5))[0]


CASES = {
    "plain": (lambda w, x: jnp.sum(x @ w), Products(ONE)),
    "compiled": (jax.jit(lambda w, x: jnp.sum(x @ w)), Products(ONE)),
    "computed again": (jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(x @ w))), Products(ONE)),
    "with its own gradient": (by_hand, Products(ONE)),
    "in a loop": (repeated, Products(5 * ONE)),
    "of others": (lambda w, x: jnp.sum(x @ W) + jnp.sum(w), Products(0, ONE)),
    "stopped before": (lambda w, x: jnp.sum(x @ lax.stop_gradient(w)) + w[0, 0], Products(0, ONE)),
    "stopped behind": (lambda w, x: lax.stop_gradient(jnp.sum(x @ w)) + w[0, 0], Products(0, ONE)),
    "both": (lambda w, x: jnp.sum(x @ w * lax.stop_gradient(x @ w)), Products(ONE, ONE)),
    "logged": (lambda w, x: (jnp.sum(w), jnp.sum(x @ w)), Products(0, ONE)),
    "read by nobody": (lambda w, x: [jnp.sum(w), x @ w][0], Products(0)),
    "one of two": (
        lambda w, x: lax.cond(x[0, 0] > 0, lambda: jnp.sum(x @ w), lambda: jnp.sum(w)),
        Products(ONE),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_products(case):
    f, expected = CASES[case]
    assert counted(f, W, X) == expected


def test_in_training_they_count_three_times_and_a_teachers_once():
    assert Products(learnt=10, given=4).training == 34


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 6])
def test_convolutions_multiply_no_zeros_of_padding(stride, groups):
    kernel, images = jnp.ones([3, 3, 6 // groups, 12]), jnp.ones([2, 9, 7, 6])

    def f(kernel, images):
        return jnp.sum(
            lax.conv_general_dilated(
                images, kernel, (stride, stride), "SAME", feature_group_count=groups,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        )  # fmt: skip

    taps = {1: 25 * 19, 2: 13 * 10}[stride]  # of rows, times those of columns
    expected = 2 * 2 * 12 * (6 // groups) * taps
    assert counted(f, kernel, images) == Products(expected)
