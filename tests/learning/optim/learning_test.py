"""Every optimizer of the table learns handwritten digits: from scratch, and under a fresh head.

Correct updates can still lead nowhere, such as LAMB's for a head that starts at zero.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.learning.optim.optimizers_test import settings
from vit_jax import models
from vit_jax.data.sources import table
from vit_jax.learning.optim import optimizers, schedules

FIELDS = {"depth": 1, "width": 64, "mlp_dim": 128, "num_heads": 4, "pool": "avg"}
BATCH, STEPS, STEPS_OF_A_HEAD, WARMUP = 128, 200, 100, 10
TRAINING_DIGITS = 1437
PERCENT = 65  # least accuracy on the other digits; chance is 10
# Learning rate and fields. Accuracies reached from scratch and under a fresh head: see the commit.
OPTIMIZERS = {
    "adam": (2e-3, {}),
    "sgd": (0.1, {}),
    "rmsprop": (1e-3, {"b2": 0.9, "eps": 1e-3}),
    "adafactor": (2e-3, {}),
    "lion": (5e-4, {"b2": 0.99}),
    "muon": (2e-3, {"momentum": 0.95, "nesterov": True}),
    "lamb": (3e-3, {"eps": 1e-6, "weight_decay": 0.05}),
}

pytestmark = pytest.mark.slow


@functools.cache
def data():
    with np.load(Path(table.__file__).with_name("digits.npz")) as arrays:
        images = arrays["images"].astype(np.float32)[..., None].repeat(3, -1) / 8 - 1
        return jnp.asarray(images), jnp.asarray(arrays["labels"], jnp.int32)


def trained(name, steps, start=None):
    """(parameters, accuracy on the test digits in percent); start: all parameters but the head."""
    model = models.create("ViT-Ti/4", num_classes=10, image_size=8, rngs=nnx.Rngs(0), **FIELDS)
    graph, variables = nnx.split(model, nnx.Param)
    params = nnx.to_pure_dict(variables)
    params = params if start is None else {**start, "head": params["head"]}
    lr, fields = OPTIMIZERS[name]
    schedule = schedules.schedule(
        "cosine", peak=lr, warmup_steps=WARMUP, cooldown_steps=0, total_steps=steps,
        rsqrt_timescale_steps=1, exponential_factor=1.0, exponential_steps=1.0,
    )  # fmt: skip
    fields = {"schedule": schedule, "peak_lr": lr, "grad_clip_norm": 1.0} | fields
    tx = optimizers.create(name, **settings(**fields))
    images, labels = data()

    def loss(params, chosen):
        logits = nnx.merge(graph, params)(images[chosen])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[chosen]).mean()

    def step(carry, key):
        params, state = carry
        chosen = jax.random.randint(key, (BATCH,), 0, TRAINING_DIGITS)
        updates, state = tx.update(jax.grad(loss)(params, chosen), state, params)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def run(params):
        keys = jax.random.split(jax.random.key(0), steps)
        params = jax.lax.scan(step, (params, tx.init(params)), keys)[0][0]
        predicted = nnx.merge(graph, params)(images[TRAINING_DIGITS:]).argmax(-1)
        return params, 100 * jnp.mean(predicted == labels[TRAINING_DIGITS:])

    params, percentage = run(params)
    return params, float(percentage)


@functools.cache
def of_adam():
    return trained("adam", STEPS)


def test_every_optimizer_is_tested():
    assert OPTIMIZERS.keys() == optimizers.OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learns_from_scratch(name):
    percent = of_adam()[1] if name == "adam" else trained(name, STEPS)[1]
    assert percent > PERCENT


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learns_under_a_fresh_head(name):
    assert trained(name, STEPS_OF_A_HEAD, of_adam()[0])[1] > PERCENT
