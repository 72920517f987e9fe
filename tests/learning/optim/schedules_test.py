import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from vit_jax.learning.optim import schedules

ROUNDING = 1e-6  # a few float32 operations on numbers of order one


def schedule(kind, **changes):
    fields = {"peak": 1.0, "warmup_steps": 0, "cooldown_steps": 0, "total_steps": 10}
    fields |= {"rsqrt_timescale_steps": 4, "exponential_factor": 0.5, "exponential_steps": 3.5}
    return schedules.schedule(kind, **{**fields, **changes})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0, 0.05, 0.1, 0.075, 0.05, 0.025, 0]),
        ("cosine", [0, 0.05, 0.1, 0.05 * (1 + 0.5**0.5), 0.05, 0.05 * (1 - 0.5**0.5), 0]),
        ("constant", [0, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1]),
        ("rsqrt", [0, 0.05, 0.1, 0.1 / 1.5**0.5, 0.1 / 2**0.5, 0.1 / 2.5**0.5, 0.1 / 3**0.5]),
        ("exponential", [0, 0.05, 0.05, 0.05, 0.025, 0.025, 0.0125]),  # 3.5 steps are over at 4
    ],
)
def test_equals_the_closed_form(kind, expected):
    lr = schedule(kind, peak=0.1, warmup_steps=4, total_steps=12)
    steps = range(0, 13, 2)
    np.testing.assert_allclose([lr(s) for s in steps], expected, atol=ROUNDING)
    np.testing.assert_allclose(jax.jit(jax.vmap(lr))(jnp.array(steps)), expected, atol=ROUNDING)


@pytest.mark.parametrize("kind", ["constant", "rsqrt", "exponential"])
def test_cooldown_is_a_line_to_zero(kind):
    without = schedule(kind, warmup_steps=2, total_steps=12)
    lr = schedule(kind, warmup_steps=2, cooldown_steps=4, total_steps=12)
    factors = {0: 1, 2: 1, 8: 1, 9: 0.75, 10: 0.5, 11: 0.25, 12: 0, 13: 0}
    for step, factor in factors.items():
        np.testing.assert_allclose(lr(step), without(step) * factor, atol=ROUNDING)


def test_exponential_is_that_of_the_code_of_efficientnet():
    """tf.train.exponential_decay with staircase, under a warmup of 5 epochs (2.4 a step down)."""
    epoch = 1_281_167 / 4096
    lr = schedule(
        "exponential", peak=0.256, warmup_steps=round(5 * epoch), total_steps=round(350 * epoch),
        exponential_factor=0.97, exponential_steps=2.4 * epoch,
    )  # fmt: skip
    np.testing.assert_allclose(lr(782), 0.256 * 782 / 1564, rtol=ROUNDING)
    np.testing.assert_allclose(lr(1564), 0.256 * 0.97**2, rtol=ROUNDING)
    np.testing.assert_allclose(lr(109_470), 0.256 * 0.97**145, rtol=1e-5)  # float32's power


def test_exponential_falls_at_the_very_step():
    lr = schedule("exponential", exponential_steps=41.0, total_steps=41 * 100)
    steps = np.arange(41 * 100)
    np.testing.assert_array_equal(jax.jit(jax.vmap(lr))(steps), 0.5 ** (steps // 41))


def test_timescale_stretches_rsqrt():
    np.testing.assert_allclose(schedule("rsqrt", rsqrt_timescale_steps=3)(9), 0.5, atol=ROUNDING)
    np.testing.assert_allclose(schedule("rsqrt", rsqrt_timescale_steps=1)(3), 0.5, atol=ROUNDING)


@pytest.mark.parametrize("kind", schedules.DECAYS)
def test_knows_whether_it_ends_at_zero(kind):
    assert schedules.DECAYS[kind].to_zero == (schedule(kind)(10) < ROUNDING)


def test_no_warmup_starts_at_the_peak():
    assert schedule("linear", peak=0.5)(0) == 0.5


def test_warmup_may_fill_the_whole_training():
    lr = schedule("cosine", warmup_steps=10)
    np.testing.assert_allclose([lr(5), lr(9)], [0.5, 0.9], atol=ROUNDING)


def test_past_the_end_stays_at_the_end():
    lr = schedule("cosine")
    assert lr(11) == lr(10) == 0.0


@pytest.mark.parametrize("kind", schedules.DECAYS)
def test_returns_a_float32_scalar(kind):
    lr = schedule(kind, warmup_steps=1, total_steps=3)(jnp.int32(2))
    assert lr.shape == () and lr.dtype == jnp.float32


def test_a_warmup_that_does_not_fit_is_refused():
    with refused():
        schedule("linear", warmup_steps=11)


def test_a_cooldown_that_does_not_fit_is_refused():
    with refused(7):
        schedule("rsqrt", warmup_steps=3, cooldown_steps=8)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_schedule_that_ends_at_zero_takes_no_cooldown(kind):
    with refused():
        schedule(kind, cooldown_steps=3)
