"""Costs of a model, counted differently from the package."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import models
from vit_jax.core import pytrees

# Cached per process: several tests ask for the same model, which takes a trace.
info = functools.cache(models.info)


def random_parameters(make):
    """(graph, parameters) of a module, variances above 0; compiles nothing."""
    graph, shapes = nnx.split(nnx.eval_shape(make), nnx.Param)
    rng = np.random.default_rng(0)

    def draw(name, x):
        values = rng.normal(size=x.shape)
        values = np.abs(values) + 0.5 if name.endswith("variance") else values
        fan_in = x.size // x.shape[-1] / (x.shape[0] if "block" in name else 1)
        values /= np.sqrt(fan_in) if name.endswith("kernel") else 1
        return jnp.asarray(values, jnp.float32)

    return graph, pytrees.map_named(draw, nnx.to_pure_dict(shapes))


def random_images(*shape):
    return np.random.default_rng(1).normal(size=(*shape, 3)).astype(np.float32)


def loss_and_gradients(make, size):
    """Of training's forward pass with random parameters, for images [4, *size, 3]; by name."""
    graph, params = random_parameters(make)
    images = random_images(4, *size)

    def loss(params):
        logits = nnx.merge(graph, params)(images, train=True, rngs=jax.random.key(1))
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    return value, pytrees.flatten(grads)
