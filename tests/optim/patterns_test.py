import jax.numpy as jnp
import pytest

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.optim import patterns

PARAMS = {
    "blocks": {"block": {"mlp": {"fc1": {"kernel": jnp.zeros((3, 4, 5))}}}},
    "head": {"kernel": jnp.zeros((4, 2)), "bias": jnp.zeros(2)},
    "cls": jnp.zeros(4),
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("blocks/.*", {"blocks/block/mlp/fc1/kernel": [True, True, True]}),
        ("blocks/block/mlp/fc1/kernel", {"blocks/block/mlp/fc1/kernel": [True, True, True]}),
        ("blocks/[1-2]/.*", {"blocks/block/mlp/fc1/kernel": [False, True, True]}),
        ("blocks/0/mlp/.*", {"blocks/block/mlp/fc1/kernel": [True, False, False]}),
        ("head/.*|cls", {"head/kernel": True, "head/bias": True, "cls": True}),
        (".*/bias", {"head/bias": True}),
    ],
)
def test_match(pattern, expected):
    masks = pytrees.flatten(patterns.match(pattern, PARAMS, field="optim.freeze"))
    assert {name: mask.tolist() for name, mask in masks.items() if mask.any()} == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("head", r"optim.freeze: 'head' matches no parameter.*whole name.*'head/bias'"),
        ("hed/kernel", "Did you mean 'head/kernel'"),
        ("blocks/3/.*", "blocks/0/mlp"),
        ("blocks/[/.*", "not a regular expression"),
    ],
)
def test_a_pattern_that_matches_nothing_is_explained(pattern, message):
    with pytest.raises(UserError, match=message):
        patterns.match(pattern, PARAMS, field="optim.freeze")
