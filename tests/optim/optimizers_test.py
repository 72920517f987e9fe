"""Each update is compared with one written out in float64 NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.core.errors import UserError
from vit_jax.optim import decay, optimizers

B1, B2, EPS, MOMENTUM = 0.9, 0.999, 1e-8, 0.9
PEAK = 0.01
LRS = (0.002, 0.01, 0.007, 0.003)  # one per step

# Parameters are of order one and each step adds a handful of float32 roundings of 6e-8.
ROUNDING = 2e-6
# bfloat16 keeps 8 bits; a step moves parameters by lr times a direction of up to 4.
BF16_ROUNDING = 4 * sum(LRS) / 256


def settings(**changes):
    defaults = {
        "schedule": lambda step: jnp.array(LRS)[step],
        "peak_lr": PEAK,
        "weight_decay": 0.0,
        "weight_decay_meaning": "lr_scaled",
        "grad_clip_norm": None,
        "b1": B1,
        "b2": B2,
        "eps": EPS,
        "momentum": MOMENTUM,
        "nesterov": False,
        "mu_dtype": None,
    }
    return defaults | changes


def tree(seed, layers=()):
    rng = np.random.default_rng(seed)
    return {
        "block": {"kernel": rng.normal(size=(*layers, 3, 4)), "bias": rng.normal(size=(*layers, 4))}
    }


def float32(params):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def run(name, params, gradients, **changes):
    """Parameters after one update per tree of gradients, and the optimizer's last state."""
    tx = optimizers.create(name, **settings(**changes))
    params = float32(params)
    state = tx.init(params)
    for grads in gradients:
        updates, state = jax.jit(tx.update)(float32(grads), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def numpy_run(
    name, p, gradients, *, weight_decay=0.0, meaning="lr_scaled", clip=None, nesterov=False
):
    """As torch.optim.AdamW, Adam and SGD document their updates; norms over all leaves."""
    first, second = {}, {}
    p = dict(p["block"])
    for t, (grads, lr) in enumerate(zip(gradients, LRS, strict=False), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in grads["block"].values()))
        for n in p:
            g = grads["block"][n] * (min(1.0, clip / norm) if clip else 1.0)
            wd = weight_decay if n == "kernel" else 0.0
            if meaning == "coupled":
                g = g + wd * p[n]
            if name == "adam":
                first[n] = B1 * first.get(n, 0) + (1 - B1) * g
                second[n] = B2 * second.get(n, 0) + (1 - B2) * g**2
                direction = (first[n] / (1 - B1**t)) / (np.sqrt(second[n] / (1 - B2**t)) + EPS)
            else:
                first[n] = MOMENTUM * first.get(n, 0) + g
                direction = g + MOMENTUM * first[n] if nesterov else first[n]
            shrink = {"lr_scaled": lr * wd, "schedule_scaled": lr / PEAK * wd, "coupled": 0.0}
            p[n] = p[n] - lr * direction - shrink[meaning] * p[n]
    return {"block": p}


def assert_close(found, expected, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), found, expected
    )


GRADIENTS = [tree(seed) for seed in range(1, 1 + len(LRS))]


@pytest.mark.parametrize(
    ("name", "meaning"), list(itertools.product(optimizers.OPTIMIZERS, decay.WEIGHT_DECAY_MEANINGS))
)
def test_meanings_of_weight_decay(name, meaning):
    params, weight_decay = tree(0), 0.3
    found, _ = run(name, params, GRADIENTS, weight_decay=weight_decay, weight_decay_meaning=meaning)
    expected = numpy_run(name, params, GRADIENTS, weight_decay=weight_decay, meaning=meaning)
    assert_close(found, expected, ROUNDING)


@pytest.mark.parametrize("meaning", decay.WEIGHT_DECAY_MEANINGS)
def test_shrinkage_is_what_plain_sgd_takes_off(meaning):
    zeros = jax.tree.map(np.zeros_like, tree(0))
    found, _ = run(
        "sgd", tree(0), [zeros], weight_decay=0.3, weight_decay_meaning=meaning, momentum=0.0
    )
    share = decay.shrinkage(LRS[0], weight_decay=0.3, meaning=meaning, peak_lr=PEAK)
    before = tree(0)["block"]
    np.testing.assert_allclose(found["block"]["kernel"], before["kernel"] * (1 - share), ROUNDING)
    np.testing.assert_array_equal(found["block"]["bias"], before["bias"].astype(np.float32))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum(nesterov):
    found, _ = run("sgd", tree(0), GRADIENTS, nesterov=nesterov)
    assert_close(found, numpy_run("sgd", tree(0), GRADIENTS, nesterov=nesterov), ROUNDING)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("clip", [0.5, 1e3])
def test_clips_by_the_norm_over_all_leaves_before_coupled_decay(name, clip):
    found, _ = run(
        name,
        tree(0),
        GRADIENTS,
        grad_clip_norm=clip,
        weight_decay=0.3,
        weight_decay_meaning="coupled",
    )
    expected = numpy_run(name, tree(0), GRADIENTS, clip=clip, weight_decay=0.3, meaning="coupled")
    assert_close(found, expected, ROUNDING)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_first_moment_in_bfloat16(name):
    found, state = run(name, tree(0), GRADIENTS, mu_dtype="bfloat16")
    dtypes = [x.dtype for x in jax.tree.leaves(state) if x.ndim]
    assert dtypes.count(jnp.bfloat16) == 2  # kernel and bias
    assert dtypes.count(jnp.float32) == (2 if name == "adam" else 0)  # the second moment
    assert_close(found, numpy_run(name, tree(0), GRADIENTS), BF16_ROUNDING)


def test_no_momentum_keeps_no_velocity():
    _, state = run("sgd", tree(0), GRADIENTS, momentum=0.0)
    assert not [x for x in jax.tree.leaves(state) if x.ndim]


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_stacked_blocks_are_updated_as_if_each_were_alone(name):
    num_layers = 3
    params, gradients = tree(0, (num_layers,)), [tree(s, (num_layers,)) for s in (1, 2, 3)]
    stacked, _ = run(name, params, gradients, weight_decay=0.3)
    for layer in range(num_layers):

        def one(stack, layer=layer):
            return jax.tree.map(lambda x: x[layer], stack)

        alone, _ = run(name, one(params), [one(g) for g in gradients], weight_decay=0.3)
        jax.tree.map(np.testing.assert_array_equal, one(stacked), alone)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("adm", {}, "'adam'"),
        ("adam", {"mu_dtype": "bfloat61"}, "'bfloat16'"),
        ("adam", {"grad_clip_norm": 0.0}, "optim.grad_clip_norm"),
        ("adam", {"weight_decay_meaning": "couple"}, "'coupled'"),
    ],
)
def test_wrong_fields_are_explained(name, changes, message):
    with pytest.raises(UserError, match=message):
        optimizers.create(name, **settings(**changes))
