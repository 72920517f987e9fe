import dataclasses
import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused
from tests.weights.conftest import timm  # noqa: F401, a fixture: timm without torchvision
from vit_jax.learning.optim import schedules

ROUNDING = 1e-6  # a few float32 operations on numbers of order one


def schedule(kind, **changes):
    fields = {"peak": 1.0, "warmup_steps": 0, "cooldown_steps": 0, "total_steps": 10}
    own = {"rsqrt_timescale_steps": 4, "exponential_factor": 0.5, "exponential_epochs": 3.5}
    own = {f.name: own[f.name] for f in dataclasses.fields(schedules.DECAYS[kind])} | changes
    decay = {name: own.pop(name) for name in own.keys() - changes.keys()}
    for field in dataclasses.fields(schedules.DECAYS[kind]):
        decay[field.name] = own.pop(field.name, decay.get(field.name))
    return schedules.schedule(schedules.DECAYS[kind](**decay), **{**fields, **own})


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
        exponential_factor=0.97, exponential_epochs=2.4, steps_per_epoch=epoch,
    )  # fmt: skip
    np.testing.assert_allclose(lr(782), 0.256 * 782 / 1564, rtol=ROUNDING)
    np.testing.assert_allclose(lr(1564), 0.256 * 0.97**2, rtol=ROUNDING)
    np.testing.assert_allclose(lr(109_470), 0.256 * 0.97**145, rtol=1e-5)  # float32's power


def rates(kind, total_steps, **changes):
    lr = schedule(kind, total_steps=total_steps, **changes)
    return jax.jit(jax.vmap(lr))(np.arange(total_steps))


def test_vit_lite_is_that_of_its_code():
    """examples/main.py of SHI-Labs/Compact-Transformers, adjust_learning_rate."""
    updates, epochs, warmup = 391, 200, 5  # of an epoch of 50,000 images

    def theirs(epoch):
        if epoch < warmup:
            return 5e-4 / (warmup - epoch)
        return 5e-4 * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))

    ours = rates(
        "cosine", updates * epochs, peak=5e-4, warmup="reciprocal", warmup_steps=warmup * updates,
        steps_per_epoch=updates, by_epoch=True,
    )  # fmt: skip
    expected = np.repeat([theirs(epoch) for epoch in range(epochs)], updates)
    np.testing.assert_allclose(ours, expected, rtol=ROUNDING, atol=5e-4 * ROUNDING)


def test_spt_is_that_of_its_code():
    """utils/scheduler.py of aanna0701/SPT_LSA_ViT, CosineAnnealingWarmupRestarts."""
    total, warmup, low, high = 39_000, 3_900, 1e-6, 1e-3

    def theirs(step):
        if step < warmup:
            return (high - low) * step / warmup + low
        done = (step - warmup) / (total - warmup)
        return low + (high - low) * (1 + math.cos(math.pi * done)) / 2

    ours = rates("cosine", total, peak=high, lr_min=low, warmup_lr=low, warmup_steps=warmup)
    np.testing.assert_allclose(
        ours, [*map(theirs, range(total))], rtol=ROUNDING, atol=high * ROUNDING
    )


@pytest.mark.parametrize("by_epoch", [False, True])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_cooldown_stays_at_the_lowest_rate(kind, by_epoch):
    fields = {"lr_min": 0.1, "by_epoch": by_epoch, "steps_per_epoch": 5}
    lr = rates(kind, 60, cooldown_steps=20, **fields)
    np.testing.assert_allclose(lr[40:], 0.1, rtol=ROUNDING)
    np.testing.assert_array_equal(lr[:40], rates(kind, 40, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lr_min": 1e-2},
        {"lr_min": 1e-2, "warmup_lr": 1e-3, "warmup_steps": 30},
        {"lr_min": 1e-2, "warmup_lr": 1e-3, "warmup_steps": 30, "decay_from_start": True},
        {"lr_min": 1e-2, "cooldown_steps": 20, "cycles": 3, "cycle_decay": 0.5},
        {"warmup_steps": 20, "cycles": 2, "cycle_decay": 0.1, "decay_from_start": True},
    ],
)
@pytest.mark.parametrize("by_epoch", [False, True])
@pytest.mark.parity
@pytest.mark.usefixtures("timm")
def test_cosine_is_that_of_timm(by_epoch, fields):
    torch = pytest.importorskip("torch")
    scheduler = importlib.import_module("timm.scheduler.cosine_lr")
    total, updates = 260, 10
    settings = {"warmup_steps": 0, "warmup_lr": 0.0, "decay_from_start": False, "lr_min": 0.0}
    settings |= {"cooldown_steps": 0, "cycles": 1, "cycle_decay": 1.0} | fields
    first = 0 if settings["decay_from_start"] else settings["warmup_steps"]
    decay = (total - first - settings["cooldown_steps"]) // settings["cycles"]
    unit = updates if by_epoch else 1
    theirs = scheduler.CosineLRScheduler(
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0),
        decay // unit,
        settings["lr_min"],
        cycle_decay=settings["cycle_decay"],
        cycle_limit=settings["cycles"],
        warmup_t=settings["warmup_steps"] // unit,
        warmup_lr_init=settings["warmup_lr"],
        warmup_prefix=not settings["decay_from_start"],
    )
    expected = [theirs._get_lr(step // unit)[0] for step in range(total)]
    ours = rates("cosine", total, by_epoch=by_epoch, steps_per_epoch=updates, **fields)
    np.testing.assert_allclose(ours, expected, rtol=2 * ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("kind", schedules.DECAYS)
def test_knows_whether_it_ends_at_zero(kind):
    assert schedules.DECAYS[kind].to_zero == (schedule(kind)(10) < ROUNDING)


def test_ends():
    assert schedule("linear", peak=0.5)(0) == 0.5  # no warmup
    lr = schedule("cosine", warmup_steps=10)  # nothing else
    np.testing.assert_allclose([lr(5), lr(9)], [0.5, 0.9], atol=ROUNDING)
    lr = schedule("cosine")
    assert lr(11) == lr(10) == 0.0


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("linear", {"warmup_steps": 11}, "optim.warmup_"),
        ("rsqrt", {"warmup_steps": 3, "cooldown_steps": 8}, 7),
        ("linear", {"cooldown_steps": 3}, "optim.cooldown_"),
        ("cosine", {"cooldown_steps": 3}, "optim.cooldown_"),
    ],
)
def test_what_does_not_fit_is_refused(kind, fields, name):
    with refused(name):
        schedule(kind, **fields)
