import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.core import pytrees
from vit_jax.core.errors import UserError
from vit_jax.nn.stack import unstack
from vit_jax.optim import patterns


def params():
    return {
        "blocks": {"block": {"kernel": jnp.ones((3, 2, 2)), "bias": jnp.ones((3, 2))}},
        "head": {"kernel": jnp.ones((2, 2))},
    }


def test_stopped_gradients_are_zero_where_frozen():
    freeze = ("blocks/[01]/kernel", "head/.*")
    square = lambda p: sum(
        jnp.sum(x**2) for x in jax.tree.leaves(patterns.stop_gradients(p, freeze))
    )
    value, grads = jax.value_and_grad(square)(params())
    assert value == 12 + 6 + 4
    kernel = grads["blocks"]["block"]["kernel"]
    np.testing.assert_array_equal(kernel[:, 0, 0], [0, 0, 2])
    assert (grads["blocks"]["block"]["bias"] == 2).all()
    assert (grads["head"]["kernel"] == 0).all()


def test_frozen_parameters_have_no_update_decay_or_state():
    tx = patterns.without_frozen(optax.adamw(0.1, weight_decay=0.5), ("blocks/0/.*", "head/.*"))
    state = tx.init(params())
    assert not [name for name in pytrees.flatten(state) if "head" in name]
    updates, _ = tx.update(params(), state, params())
    assert (updates["head"]["kernel"] == 0).all()
    for x in updates["blocks"]["block"].values():
        assert (x[0] == 0).all() and (x[1:] < 0).all()


def test_nothing_frozen_changes_nothing():
    tx = optax.adam(0.1)
    assert patterns.without_frozen(tx, ()) is tx
    assert patterns.stop_gradients(tx, ()) is tx


@pytest.mark.parametrize("freeze", [(".*",), ("blocks/.*", "head/.*")])
def test_freezing_everything_is_refused(freeze):
    with pytest.raises(UserError, match=r"leaves no parameter to be trained"):
        patterns.without_frozen(optax.adam(0.1), freeze).init(params())


def test_frozen_parameters_cost_no_gradient():
    """Counts matrix products, the only operations of this network."""

    def loss(params, x):
        for layer in unstack(params["blocks"]["block"]["kernel"], 4, converted=False):
            x = x @ layer
        return jnp.sum(x @ params["head"])

    def products(*freeze):
        frozen_loss = lambda p, x: loss(patterns.stop_gradients(p, freeze), x)
        params = {"blocks": {"block": {"kernel": jnp.ones((4, 8, 8))}}, "head": jnp.ones((8, 8))}
        compiled = jax.jit(jax.grad(frozen_loss)).lower(params, jnp.ones((8, 8))).compile()
        return round(compiled.cost_analysis()["flops"] / (2 * 8**3))

    everything = products()
    assert everything == 4 + 5 + 4  # activations, gradients of kernels, gradients of activations
    assert products("blocks/2/.*") == everything - 1
    # Nothing is trained below, so the activations' gradients are not needed either.
    assert products("blocks/[01]/.*") == everything - 2 - 2
