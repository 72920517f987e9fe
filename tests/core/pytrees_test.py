import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core import pytrees

TREE = {"head": {"bias": jnp.zeros(3), "kernel": jnp.zeros((2, 3))}, "cls": jnp.zeros(2)}


def test_names_and_back():
    named = pytrees.flatten(TREE)
    assert set(named) == {"cls", "head/bias", "head/kernel"}
    assert pytrees.unflatten(named) == TREE


def test_a_tree_apart_and_together_again():
    stack = {"kernel": np.arange(12.0).reshape(2, 2, 3), "bias": np.zeros((2, 3))}
    moments = optax.adam(1e-3).init({"blocks": {"block": stack}, "head": np.ones((2, 3))})
    tree = ({"blocks": {"block": stack}, "cls": np.zeros((2, 2, 2))}, moments)
    apart = pytrees.unstack_layers(tree, list)
    names = {"blocks/block[0]/kernel", "blocks/block[1]/kernel", "blocks/block/bias", "cls"}
    assert set(pytrees.flatten(apart[0])) == names
    assert not any(pytrees.is_stacked(name) and "kernel" in name for name in names)
    np.testing.assert_array_equal(apart[0]["blocks"]["block[1]"]["kernel"], stack["kernel"][1])
    assert jax.tree.structure(apart) == jax.tree.structure(pytrees.unstack_layers(apart, list))
    back = pytrees.stack_layers(apart, np.stack)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def test_layers_stay_in_order_beyond_ten():
    tree = {"block": {"kernel": np.arange(12.0).reshape(12, 1, 1)}}
    back = pytrees.stack_layers(pytrees.unstack_layers(tree, list), np.stack)
    np.testing.assert_array_equal(back["block"]["kernel"], tree["block"]["kernel"])


def test_running_statistics_are_apart_from_what_is_trained():
    norm = {name: np.ones(2) for name in ("scale", "running_mean", "running_variance")}
    tree = {"norm": norm, "head": {"kernel": np.ones(3)}}
    kept = pytrees.without_statistics(tree)
    assert sorted(pytrees.flatten(kept)) == ["head/kernel", "norm/scale"]
    assert pytrees.without_statistics(kept) is kept
    whole = pytrees.flatten(pytrees.with_statistics(kept, tree))
    assert {name: float(x[0]) for name, x in whole.items()} == {
        "head/kernel": 1, "norm/scale": 1, "norm/running_mean": -1, "norm/running_variance": -1,
    }  # fmt: skip
    assert pytrees.with_statistics(kept, kept) is kept
