"""Kernels in 8 bits: their error is half a step at most, whatever layout they have."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.weights.conftest import randomised
from vit_jax.models.int8 import quantise

TOY = {"depth": 2, "width": 16, "mlp_dim": 24, "num_heads": 2, "num_classes": 3, "image_size": 8}


def logits(model, images):
    graph, params = nnx.split(model, nnx.Param)
    return np.asarray(jax.jit(lambda p, x: nnx.merge(graph, p)(x))(params, images))


def rounded(kernel, inputs):
    step = np.abs(kernel).max(inputs, keepdims=True) / 127
    return np.rint(kernel / step) * step


@pytest.mark.parametrize("scan", [False, True])
def test_computes_with_the_rounded_kernels(scan):
    model, plain = (randomised("ViT-Ti/4", scan=scan, **TOY).model for _ in range(2))
    images = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    quantise(model)
    layers = [(path, m) for path, m in nnx.iter_graph(model) if hasattr(m, "kernel_scale")]
    assert len(layers) == 5  # four of the blocks, and the head
    for (path, layer), (_, before) in zip(
        layers,
        [(p, m) for p, m in nnx.iter_graph(plain) if hasattr(m, "kernel_scale")],
        strict=True,
    ):
        assert layer.kernel.dtype == np.int8, path
        stacked = int("block" in path)
        inputs = tuple(range(stacked, stacked + layer.contracted))
        before.kernel[...] = rounded(np.asarray(before.kernel[...]), inputs)
        assert layer.kernel_scale.shape == np.asarray(before.kernel[...]).max(inputs).shape
    np.testing.assert_allclose(logits(model, images), logits(plain, images), atol=1e-5)


def test_an_output_without_weights_stays_zero():
    model = randomised("ViT-Ti/4", **TOY).model
    model.head.kernel[...] = np.zeros(model.head.kernel.shape, np.float32)
    quantise(model)
    assert np.isfinite(np.asarray(model.head.kernel_scale[...])).all()
    assert not np.asarray(model.head.kernel[...]).any()
