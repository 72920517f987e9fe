"""Costs of a model, counted differently from the package."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import jaxprs_in_params

from vit_jax import models
from vit_jax.core import pytrees

# Cached per process: several tests ask for the same model, which takes a trace.
info = functools.cache(models.info)


def product_flops(jaxpr):
    """2 x multiplications of every matrix product in a jaxpr, nested ones included."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            terms = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * terms * math.prod(eqn.outvars[0].aval.shape)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(product_flops(inner) for inner in jaxprs_in_params(eqn.params))
    return total


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


def vit_parameters(spec, *, num_classes, image_size):
    """Counts a ViT's kernels, biases, norms and tables."""
    s, d, m, k = spec, spec.width, spec.mlp_dim, spec.width // spec.num_heads
    rows, columns = (side // s.patch_size for side in image_size)
    cls, gated, dist = s.has_class_token, s.mlp != "mlp", s.distillation_token
    prefix, q = cls or dist or s.registers > 0, s.position_hidden
    norm = d * (1 + (s.norm == "layer"))
    table = {
        "learned_1d": (rows * columns + cls) * d,
        "learned_2d": (rows + columns) * d // 2,
        "rotary_axial": s.absolute_positions * (rows * columns + cls) * d,
        "rotary_mixed": s.depth * d + s.absolute_positions * (rows * columns + cls) * d,
        "relative_2d": ((2 * rows - 1) * (2 * columns - 1) + 3 * prefix) * s.num_heads,
        "relative_mlp": 3 * q + (q + 1) * s.num_heads,
        "relative": (2 * (rows * columns + cls + dist + s.registers) - 1) * k,
    }.get(s.position_embedding, 0)
    tables = s.depth if s.position_place == "layers" else 1
    biases = {"all": 3, "query_value": 2, "none": 0}[s.qkv_bias] * d
    biases += s.dense_bias * (d + m + d + gated * m)
    block = 4 * d * d + (2 + gated) * d * m + biases + norm * (2 - s.parallel)
    block += s.qk_norm * 2 * k + (s.layer_scale > 0) * 2 * d
    block += s.attention_norm * norm + s.mlp_norm * norm // d * m
    hidden = s.pool_mlp_dim or m
    probe = d + 4 * (d * d + d) + norm + 2 * d * hidden + hidden + d
    around = s.patch_size**2 * 3 * d + s.patch_bias * d + cls * d + s.registers * d
    around += norm * (s.patch_norm + s.pre_norm + (s.final_norm != "none"))
    around += s.pre_logits * (d * d + d) + s.projection * d + s.features * num_classes + num_classes
    around += dist * (d + s.distillation_position * d + num_classes)
    return around + table * tables + s.depth * block + (s.pool == "map") * probe
