import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.core.errors import UserError
from vit_jax.optim import schedules

ROUNDING = 1e-6  # a few float32 operations on numbers of order one


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0, 0.05, 0.1, 0.075, 0.05, 0.025, 0]),
        ("cosine", [0, 0.05, 0.1, 0.05 * (1 + 0.5**0.5), 0.05, 0.05 * (1 - 0.5**0.5), 0]),
        ("constant", [0, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_closed_form(kind, expected):
    lr = schedules.schedule(kind, peak=0.1, warmup_steps=4, total_steps=12)
    steps = range(0, 13, 2)
    np.testing.assert_allclose([lr(s) for s in steps], expected, atol=ROUNDING)
    np.testing.assert_allclose(jax.jit(jax.vmap(lr))(jnp.array(steps)), expected, atol=ROUNDING)


def test_no_warmup_starts_at_the_peak():
    assert schedules.schedule("linear", peak=0.5, warmup_steps=0, total_steps=10)(0) == 0.5


def test_warmup_may_fill_the_whole_training():
    lr = schedules.schedule("cosine", peak=1.0, warmup_steps=10, total_steps=10)
    np.testing.assert_allclose([lr(5), lr(9)], [0.5, 0.9], atol=ROUNDING)


def test_past_the_end_stays_at_the_end():
    lr = schedules.schedule("cosine", peak=1.0, warmup_steps=0, total_steps=10)
    assert lr(11) == lr(10) == 0.0


@pytest.mark.parametrize("kind", schedules.DECAYS)
def test_scalar_of_float32(kind):
    lr = schedules.schedule(kind, peak=1.0, warmup_steps=1, total_steps=3)(jnp.int32(2))
    assert lr.shape == () and lr.dtype == jnp.float32


def test_unknown_kind_names_the_nearest():
    with pytest.raises(UserError, match="'cosine'"):
        schedules.schedule("cosin", peak=1.0, warmup_steps=0, total_steps=1)


@pytest.mark.parametrize(("warmup_steps", "nearest"), [(11, 10), (-1, 0)])
def test_warmup_that_does_not_fit(warmup_steps, nearest):
    with pytest.raises(UserError, match=f"nearest: {nearest} "):
        schedules.schedule("linear", peak=1.0, warmup_steps=warmup_steps, total_steps=10)
