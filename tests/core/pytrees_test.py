import jax.numpy as jnp

from vit_jax.core import pytrees

TREE = {"head": {"bias": jnp.zeros(3), "kernel": jnp.zeros((2, 3))}, "cls": jnp.zeros(2)}


def test_names_and_back():
    named = pytrees.flatten(TREE)
    assert set(named) == {"cls", "head/bias", "head/kernel"}
    assert pytrees.unflatten(named) == TREE


def test_map_named_sees_names():
    assert pytrees.map_named(lambda name, x: name, TREE)["head"]["bias"] == "head/bias"


def test_num_elements():
    assert pytrees.num_elements(TREE) == 3 + 6 + 2
