import jax.numpy as jnp
import pytest

from vit_jax.core.errors import UserError
from vit_jax.optim import decay


def test_only_kernels_decay():
    leaf = jnp.zeros(2)
    params = {
        "cls": leaf,
        "posemb": {"table": leaf},
        "blocks": {"norm1": {"scale": leaf, "bias": leaf}, "mlp": {"kernel": leaf, "bias": leaf}},
        "kernel": {"bias": leaf},
        "head": {"kernel": leaf, "kernel_scale": leaf},
    }
    assert decay.kernels_only(params) == {
        "cls": False,
        "posemb": {"table": False},
        "blocks": {
            "norm1": {"scale": False, "bias": False},
            "mlp": {"kernel": True, "bias": False},
        },
        "kernel": {"bias": False},
        "head": {"kernel": True, "kernel_scale": False},
    }


@pytest.mark.parametrize(
    ("meaning", "weight_decay", "expected"),
    [
        ("lr_scaled", 0.1, 1e-4 * 0.1),
        ("schedule_scaled", 1e-4, 0.1 * 1e-4),  # at a tenth of the peak
        ("coupled", 0.1, 1e-4 * 0.1),
    ],
)
def test_effective_weight_decay(meaning, weight_decay, expected):
    actual = 1e-4 * decay.decay_per_lr(weight_decay, meaning, 1e-3)
    assert actual == pytest.approx(expected)


def test_unknown_meaning_names_the_nearest():
    with pytest.raises(UserError, match="'lr_scaled'"):
        decay.decay_per_lr(0.1, "lr_scale", 1e-3)


def test_schedule_scaled_needs_a_peak():
    with pytest.raises(UserError, match=r"optim\.lr=0"):
        decay.decay_per_lr(0.1, "schedule_scaled", 0.0)
    assert decay.decay_per_lr(0, "schedule_scaled", 0.0) == 0
