import pytest

from vit_jax import build
from vit_jax.core.errors import UserError
from vit_jax.optim import optimizers


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_every_optimizer_by_name(tiny_run, name):
    c = tiny_run(f"optim.name={name}").optim
    assert build.optimizer(c, lambda step: c.lr)


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("adam", "momentum=0.5", "only by sgd, muon: set optim.momentum=0.9"),
        ("adam", "nesterov=true", "optim.nesterov=True is not read by optim.name=adam"),
        ("sgd", "b1=0.5", "only by adam, adafactor, lion, muon, lamb"),
        ("adafactor", "eps=1e-6", "only by adam, muon, lamb: set optim.eps=1e-08"),
    ],
)
def test_a_field_that_goes_unread_is_refused(tiny_run, name, field, message):
    c = tiny_run(f"optim.name={name}", f"optim.{field}").optim
    with pytest.raises(UserError, match=message):
        build.optimizer(c, lambda step: c.lr)


def lr(config, *, num_examples=64):
    return build.schedule(config.optim, build.plan(config, num_examples=num_examples))


def test_schedule_reads_its_fields(tiny_run):
    base = ("optim.schedule=rsqrt", "optim.warmup_steps=none", "total.steps=16")
    changes = ("optim.rsqrt_timescale_steps=2", "optim.cooldown_steps=8", "optim.warmup_steps=1")
    rates = [float(lr(tiny_run(*base, change))(12)) for change in ("seed=0", *changes[:2])]
    assert len(set(rates)) == 3
    assert lr(tiny_run(*base, changes[2]))(0) == 0


@pytest.mark.parametrize("length", ["steps=8", "epochs=2", "examples=128"])
def test_cooldown_in_three_units(tiny_run, length):
    config = tiny_run("optim.schedule=constant", "total.steps=16", f"optim.cooldown_{length}")
    assert build.plan(config, num_examples=64).cooldown_steps == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("optim.cooldown_steps=1",), "'linear' arrives at 0 by itself"),
        (("optim.schedule=rsqrt", "optim.cooldown_steps=5"), "nearest: 4 steps of cooldown"),
        (
            ("optim.schedule=rsqrt", "optim.cooldown_steps=1", "optim.cooldown_epochs=1"),
            "Give one of optim.cooldown_",
        ),
        (("optim.rsqrt_timescale_steps=5",), "not read by optim.schedule=linear, only by rsqrt"),
    ],
)
def test_a_schedule_that_cannot_be_is_explained(tiny_run, overrides, message):
    with pytest.raises(UserError, match=message):
        lr(tiny_run(*overrides))
