"""The norms of a transformer, by name."""

from __future__ import annotations

from flax import nnx
from jax.nn import initializers

from vit_jax.nn.linear import EPSILON, LayerNorm
from vit_jax.nn.precision import Precision

# "layer": layer norm; "layer_no_bias": the same without an offset that is learned; "rms": not
# centred either (arXiv 1910.07467), as in ViT-22B (arXiv 2302.05442, section 2).
NORMS = ("layer", "layer_no_bias", "rms")


def norm(
    kind: str,
    width: int,
    axis: str,
    *,
    epsilon: float = EPSILON,
    precision: Precision,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """One of NORMS over the last axis, `width` wide, with its logical name."""
    if kind != "rms":
        return LayerNorm(
            width,
            axis,
            bias=kind == "layer",
            epsilon=epsilon,
            precision=precision,
            rngs=rngs,
        )
    return nnx.RMSNorm(
        width,
        epsilon=epsilon,
        dtype=precision.compute,
        scale_init=nnx.with_metadata(initializers.ones, axes=(axis,)),
        rngs=rngs,
    )
