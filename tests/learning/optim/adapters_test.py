"""What of a tree with low-rank adapters is trained, and by which update rule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.core import pytrees
from vit_jax.learning.optim.patterns import Frozen
from vit_jax.models.adapters import Adapters

L, D, N, R, H, K = 3, 4, 3, 2, 2, 2
QKV, FC = "blocks/block/attention/qkv/", "blocks/block/mlp/fc1/"
NAMED = {
    QKV + "kernel": (L, D, N, H, K), QKV + "lora_a": (L, D, N, R), QKV + "lora_b": (L, N, R, H, K),
    FC + "kernel": (L, D, D), FC + "lora_a": (L, D, R), FC + "lora_b": (L, R, D),
    "head/kernel": (D, 2), "norm/scale": (D,), "pooling/key_value/lora_b": (2, R, H, K),
}  # fmt: skip
PARAMS = pytrees.unflatten({name: jnp.ones(shape) for name, shape in NAMED.items()})


def trained(*kernels, train=("head/.*",), freeze=()):
    lora = Adapters(kernels, rank=R, alpha=1.0, train=train)
    masks = pytrees.flatten(Frozen(freeze, lora).masks(PARAMS))
    return {name: ~mask for name, mask in masks.items() if not mask.all()}


def test_adapters_and_what_is_named_beside_them():
    everything = trained(".*")
    assert set(everything) == {"head/kernel"} | {n for n in NAMED if pytrees.is_adapter(n)}
    assert all(mask.all() for mask in everything.values())
    assert set(trained(".*/mlp/.*", train=())) == {FC + "lora_a", FC + "lora_b"}
    beside = trained(".*/mlp/.*", train=("norm/.*", "blocks/1/mlp/fc1/kernel"))
    assert set(beside) == {FC + "lora_a", FC + "lora_b", "norm/scale", FC + "kernel"}
    assert beside[FC + "kernel"].tolist() == [False, True, False]
    assert set(trained(".*/kernel", freeze=("blocks/.*",))) == {
        "head/kernel", "pooling/key_value/lora_b"
    }  # fmt: skip


def test_some_layers_and_some_projections():
    some = trained("blocks/0/attention/(query|value)/kernel", "blocks/[12]/mlp/fc1/kernel")
    assert some[FC + "lora_b"].tolist() == [False, True, True]
    assert some[QKV + "lora_a"].tolist() == [True, False, False]
    assert some[QKV + "lora_b"].tolist() == [[True, False, True], [False] * 3, [False] * 3]
    assert trained("pooling/key/kernel")["pooling/key_value/lora_b"].tolist() == [True, False]


def test_gradients_and_updates_of_the_others_are_zero():
    lora = Adapters(("blocks/[01]/attention/query/kernel",), rank=R, alpha=1.0, train=("head/.*",))
    frozen = Frozen(adapters=lora)
    square = lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(frozen.stop_gradients(p)))
    grads = pytrees.flatten(jax.grad(square)(PARAMS))
    tx = frozen.without_frozen(optax.sgd(1.0))
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    expected = np.zeros((L, N))
    expected[:2, 0] = 1
    for tree, factor in ((grads, 2), (pytrees.flatten(updates), -1)):
        np.testing.assert_array_equal(tree[QKV + "lora_b"][..., 0, 0, 0], factor * expected)
        assert (tree["head/kernel"] == factor).all() and not tree[FC + "lora_b"].any()
