import pytest

from tests.messages import refused
from vit_jax.config import CONSTRAINTS, check_constraints
from vit_jax.core.errors import ErrorCollector

MIXTURE = ("input.mixture.a.weight=1", "input.mixture.b.weight=2")
BROKEN = [
    (("optim.name=adam", "optim.momentum=0.5"), "optim.momentum=0.5", "sgd, rmsprop, muon"),
    (("optim.name=adam", "optim.nesterov=true"), "optim.nesterov=True", "optim.name=adam"),
    (
        ("optim.name=sgd", "optim.b1=0.5"),
        "optim.b1=0.5",
        "adam, nadam, adafactor, lion, muon, lamb",
    ),
    (("lora.rank=3",), "lora.rank=3", "lora.kernels"),
    (("init.head=reset",), "init.head=reset", "init.weights"),
    (("input.batch_size=2", "input.repeats=3"), "input.repeats=3", "input.batch_size=2"),
    ((*MIXTURE, "input.repeats=3"), "input.repeats=3", "input.mixture"),
    (("input.balance=class", "input.repeats=3"), "input.repeats=3", "input.balance"),
    ((*MIXTURE, "input.balance=class"), "input.balance=class", "input.mixture"),
    ((*MIXTURE, "input.subset_examples=5"), "input.subset_examples=5", "input.mixture"),
    ((*MIXTURE, "input.pseudo_labels=a"), "input.pseudo_labels=a", "input.mixture"),
    (("input.views=decode|resize(8)",), "input.views", "method.kind=supervised"),
    (("loss.mixup=1e-40",), "loss.mixup=1e-40", "1e-06"),
    (("loss.cutmix=1e-7",), "loss.cutmix=1e-07", "1e-06"),
    (("loss.mix_until=0.85",), "loss.mix_until=0.85", "loss.mixup"),
    (("loss.mixup=1", "loss.mix_mode=pair", "input.batch_size=3"), "mix_mode=pair", "batch_size"),
    (("optim.name=optax:lion", "optim.weight_decay_meaning=coupled"), "=coupled", "optax:lion"),
    (
        ("optim.name=optax:contrib.schedule_free_sgd", "optim.ema_decay=0.9"),
        "ema_decay=0.9",
        "itself",
    ),
    (("optim.name=optax:contrib.schedule_free_sgd", "lora.kernels=qkv"), "lora.kernels", "itself"),
    (("optim.name=lamb", "optim.joint_qkv=true"), "optim.joint_qkv=True", "optim.weight_decay"),
    (("optim.name=lamb", "optim.weight_decay_on=all"), "weight_decay_on=all", "optim.name=lamb"),
    (("optim.schedule=cosine", "optim.lr_min=1"), "optim.lr_min=1.0", "optim.lr=0.001"),
    (("optim.cycle_decay=0.5",), "optim.cycle_decay=0.5", "optim.cycles=1"),
    (("optim.schedule=rsqrt", "optim.cycles=2"), "optim.cycles=2", "=rsqrt"),
    (("loss.class_weights=balanced", "input.balance=class"), "loss.class_weights=", "=class"),
    (("checkpoint.every_steps=50", "checkpoint.keep_every_steps=30"), "keep_every_steps=30", "=50"),
]


@pytest.mark.parametrize(("overrides", "assignment", "other"), BROKEN)
def test_a_rule_that_is_broken_names_both_fields(tiny_run, overrides, assignment, other):
    with refused(assignment, other) as raised:
        check_constraints(tiny_run(*overrides))
    assert raised.value.field in {constraint.field for constraint in CONSTRAINTS}


def test_all_broken_rules_are_told(tiny_run):
    errors = ErrorCollector()
    check_constraints(tiny_run("lora.rank=3", "init.head=reset"), errors.attempt)
    with refused("2 problems", "lora.rank=3", "init.head=reset"):
        errors.raise_all()
