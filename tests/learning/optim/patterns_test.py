import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.messages import refused
from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.learning.optim import patterns
from vit_jax.learning.optim.patterns import Frozen, layer_factors, with_lr_multipliers
from vit_jax.models.layers.stack import unstack

PARAMS = {
    "blocks": {"block": {"mlp": {"fc1": {"kernel": jnp.zeros((3, 4, 5))}}}},
    "head": {"kernel": jnp.zeros((4, 2)), "bias": jnp.zeros(2)},
    "cls": jnp.zeros(4),
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("blocks/.*", {"blocks/block/mlp/fc1/kernel": [True, True, True]}),
        ("blocks/[1-2]/.*", {"blocks/block/mlp/fc1/kernel": [False, True, True]}),
        ("blocks/0/mlp/.*", {"blocks/block/mlp/fc1/kernel": [True, False, False]}),
        ("head/.*|cls", {"head/kernel": True, "head/bias": True, "cls": True}),
        (".*/bias", {"head/bias": True}),
        ("head", {"head/kernel": True, "head/bias": True}),
        ("blocks/1-2/mlp/fc1", {"blocks/block/mlp/fc1/kernel": [False, True, True]}),
        ("blocks/0-0/.*/kernel", {"blocks/block/mlp/fc1/kernel": [True, False, False]}),
        (
            "(blocks/0-1|head)/.*",
            {
                "blocks/block/mlp/fc1/kernel": [True, True, False],
                "head/kernel": True,
                "head/bias": True,
            },
        ),
        ("blocks/(0-0|2)/.*", {"blocks/block/mlp/fc1/kernel": [True, False, True]}),
        (
            "(?!head/|blocks/1-2/).*",
            {"blocks/block/mlp/fc1/kernel": [True, False, False], "cls": True},
        ),
        ("(?!blocks/block/mlp/).*", {"head/kernel": True, "head/bias": True, "cls": True}),
        # Signs of a regular expression: a whole name, as it stands.
        ("[^/]*", {"cls": True}),
        (".*(?<!bias)(?<!kernel)", {"cls": True}),
        ("blocks/[/0-2/]/.*", {"blocks/block/mlp/fc1/kernel": [True, True, True]}),
    ],
)
def test_match(pattern, expected):
    masks = pytrees.flatten(patterns.match(pattern, PARAMS, field="optim.freeze"))
    assert {name: mask.tolist() for name, mask in masks.items() if mask.any()} == expected


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("heads", "'head'"),
        ("head/", "'head'"),
        ("hed/kernel", "'head/kernel'"),
        ("blocks/3-4", "blocks"),
        ("blocks/2-1", "blocks"),
        ("blocks/3/.*", "blocks/0/mlp"),
        ("blocks/[/.*", ""),
    ],
)
def test_a_pattern_that_matches_nothing_is_explained(pattern, nearest):
    with refused("optim.freeze", pattern, nearest):
        patterns.match(pattern, PARAMS, field="optim.freeze")


def params():
    return {
        "blocks": {"block": {"kernel": jnp.ones((3, 2, 2)), "bias": jnp.ones((3, 2))}},
        "head": {"kernel": jnp.ones((2, 2))},
    }


def test_frozen_parameters_have_no_gradient_update_decay_or_state():
    frozen = Frozen(("blocks/0/.*", "head/.*"))
    tx = frozen.without_frozen(optax.adamw(0.1, weight_decay=0.5))
    state = tx.init(params())
    assert not [name for name in pytrees.flatten(state) if "head" in name]
    updates, _ = tx.update(params(), state, params())
    square = lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(frozen.stop_gradients(p)))
    for tree in (updates, jax.grad(square)(params())):
        assert (tree["head"]["kernel"] == 0).all()
        for x in tree["blocks"]["block"].values():
            assert (x[0] == 0).all() and (x[1:] != 0).all()


@pytest.mark.parametrize("freeze", [(".*",), ("blocks/.*", "head/.*")])
def test_freezing_everything_is_refused(freeze):
    with refused("optim.freeze"):
        Frozen(freeze).without_frozen(optax.adam(0.1)).init(params())


def test_frozen_parameters_cost_no_gradient():
    """Counts matrix products, the only operations of this network."""

    def loss(params, x):
        for layer in unstack(params["blocks"]["block"]["kernel"], 4):
            x = x @ layer
        return jnp.sum(x @ params["head"])

    def products(*freeze):
        stop = Frozen(freeze).stop_gradients if freeze else lambda p: p
        frozen_loss = lambda p, x: loss(stop(p), x)
        params = {"blocks": {"block": {"kernel": jnp.ones((4, 8, 8))}}, "head": jnp.ones((8, 8))}
        compiled = jax.jit(jax.grad(frozen_loss)).lower(params, jnp.ones((8, 8))).compile()
        return round(compiled.cost_analysis()["flops"] / (2 * 8**3))

    everything = products()
    assert everything == 4 + 5 + 4  # activations, gradients of kernels, gradients of activations
    assert products("blocks/2/.*") == everything - 1
    # Nothing is trained below, so the activations' gradients are not needed either.
    assert products("blocks/[01]/.*") == everything - 2 - 2


ROUNDING = 1e-6  # relative; one float32 product
DEPTH = 3


def vit_params():
    return {
        "cls": jnp.ones(2),
        "patches": {"kernel": jnp.ones((2, 2, 3, 2))},
        "positions": {"embedding": jnp.ones((5, 2))},
        "blocks": {"block": {"kernel": jnp.ones((DEPTH, 2, 2)), "bias": jnp.ones((DEPTH, 2))}},
        "norm": {"scale": jnp.ones(2)},
        "pre_logits": {"kernel": jnp.ones((2, 2))},
        "pooling": {"probe": jnp.ones(2)},
        "head": {"kernel": jnp.ones((2, 2))},
    }


def updated(layer_decay=None, lr_multipliers=(), optimizer=None):
    """Updates, negated, for gradients of 1 and a learning rate of 1."""
    tx = with_lr_multipliers(
        optimizer or optax.sgd(1.0), layer_decay=layer_decay, lr_multipliers=lr_multipliers
    )
    updates, _ = jax.jit(tx.update)(vit_params(), tx.init(vit_params()), vit_params())
    return jax.tree.map(lambda u: -u.reshape(u.shape[0], -1)[:, 0], updates)


def test_rates_fall_from_the_head_to_the_embeddings():
    rates = updated(layer_decay=0.5)
    np.testing.assert_allclose(rates["blocks"]["block"]["kernel"], [1 / 8, 1 / 4, 1 / 2], ROUNDING)
    np.testing.assert_allclose(rates["blocks"]["block"]["bias"], [1 / 8, 1 / 4, 1 / 2], ROUNDING)
    for before in (rates["cls"], rates["patches"]["kernel"], rates["positions"]["embedding"]):
        np.testing.assert_allclose(before, 1 / 16, ROUNDING)
    for name in ("norm", "pre_logits", "pooling", "head"):
        for after in rates[name].values():
            np.testing.assert_allclose(after, 1, ROUNDING)


@pytest.mark.parametrize(
    ("kind", "leaf"),
    [("relative", "offsets"), ("relative_2d", "offsets_2d"), ("relative_mlp", "fc1/kernel")],
)
def test_relative_positions_of_all_blocks_are_not_below_them(kind, leaf):
    """As get_num_layer_for_vit in the code of BEiT: the last layer's factor."""
    make = lambda place: models.create(
        "ViT-Ti/16", num_classes=3, image_size=32, depth=2, rngs=nnx.Rngs(0),
        position_embedding=kind, position_at=place,
    )  # fmt: skip
    table = re.compile(rf"(^|/)positions/{leaf}$")
    for place, expected in (("shared", 1.0), ("layers", [1 / 4, 1 / 2])):
        params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda p=place: make(p)), nnx.Param))
        factors = pytrees.flatten(layer_factors(params, 0.5))
        (offsets,) = (factor for name, factor in factors.items() if table.search(name))
        np.testing.assert_allclose(offsets, expected, ROUNDING)
        assert factors["patches/kernel"] == 1 / 8


def test_factors_of_all_patterns_that_match_are_multiplied():
    rates = updated(0.5, ("head/.*=10", "blocks/2/.*=3", "blocks/block/bias=0.1"))
    np.testing.assert_allclose(rates["head"]["kernel"], 10, ROUNDING)
    np.testing.assert_allclose(rates["blocks"]["block"]["kernel"], [1 / 8, 1 / 4, 3 / 2], ROUNDING)
    np.testing.assert_allclose(rates["blocks"]["block"]["bias"], [1 / 80, 1 / 40, 3 / 20], ROUNDING)


FACTORS = ["head/.*", "head/.*=", "head/.*=-1", "head/.*=0", "head=nan", "=3"]


@pytest.mark.parametrize(
    ("layer_decay", "lr_multipliers", "names"),
    [
        *((None, (text,), ("optim.lr_multipliers", "PATTERN=FACTOR")) for text in FACTORS),
        (None, ("haed/kernel=2",), ("optim.lr_multipliers", "'haed/kernel'")),
    ],
)
def test_impossible_multipliers_are_refused(layer_decay, lr_multipliers, names):
    with refused(*names):
        updated(layer_decay, lr_multipliers)


def test_what_a_method_adds_is_not_a_layer():
    """A decoder of 2 blocks, and a head that is called as the embedding is."""
    stage = lambda n: {"block": {"kernel": np.ones((n, 2))}}
    beside = {"blocks": stage(2), "patches": {"kernel": np.ones(2)}}
    patches = {"kernel": np.ones(2)}
    rates = layer_factors({"blocks": stage(3), "method": beside, "patches": patches}, 0.5)
    np.testing.assert_array_equal(rates["blocks"]["block"]["kernel"], [1 / 8, 1 / 4, 1 / 2])
    assert rates["patches"]["kernel"] == 1 / 16
    assert all(factor == 1 for factor in jax.tree.leaves(rates["method"]))


def test_units_of_resnets_are_layers():
    """Order from the head: ViT's blocks, units from the last stage to the first, the root."""
    stage = lambda n: {"block": {"kernel": np.ones((n, 2))}}
    resnet = {
        "root": {"conv": {"kernel": np.ones(2)}},
        "stage1": {"first": stage(1), "rest": stage(2)},
        "stage2": {"first": stage(1)},
    }
    alone = layer_factors({"resnet": resnet, "head": {"kernel": np.ones(2)}}, 0.5)
    rates = alone["resnet"]
    np.testing.assert_array_equal(rates["stage2"]["first"]["block"]["kernel"], [1 / 2])
    np.testing.assert_array_equal(rates["stage1"]["rest"]["block"]["kernel"], [1 / 8, 1 / 4])
    np.testing.assert_array_equal(rates["stage1"]["first"]["block"]["kernel"], [1 / 16])
    assert rates["root"]["conv"]["kernel"] == 1 / 32
    assert alone["head"]["kernel"] == 1

    patches = {"resnet": resnet, "projection": {"kernel": np.ones(2)}}
    hybrid = layer_factors({"patches": patches, "blocks": stage(3)}, 0.5)
    np.testing.assert_array_equal(hybrid["blocks"]["block"]["kernel"], [1 / 8, 1 / 4, 1 / 2])
    rates = hybrid["patches"]["resnet"]
    np.testing.assert_array_equal(rates["stage2"]["first"]["block"]["kernel"], [1 / 16])
    assert rates["root"]["conv"]["kernel"] == 1 / 256
    assert hybrid["patches"]["projection"]["kernel"] == 1 / 16


def test_decay_is_multiplied_too():
    decayed = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(1.0))
    rates = updated(lr_multipliers=("head/.*=2",), optimizer=decayed)
    np.testing.assert_allclose(rates["head"]["kernel"], 2 * 1.5, ROUNDING)
