"""Kernels of dense layers in 8 bits, for inference: a quarter of the memory and of the files.

Weights alone are quantised: symmetric, one scale for each output (arXiv 2106.08295, section 2.2).
Activations, norms, biases, position embeddings, the patches' projection and convolutions stay as
they are.
"""

from flax import nnx

from vit_jax.models.layers.linear import Linear


def quantise(model: nnx.Module) -> nnx.Module:
    """The model, whose dense layers now have kernels of int8; it can no longer be trained."""
    for _, module in nnx.iter_graph(model):
        if isinstance(module, Linear):
            module.quantise()
    return model
