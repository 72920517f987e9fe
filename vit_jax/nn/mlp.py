"""The dense layers of a block: two with a GELU between them (section 3.1), or gated ones."""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx

from vit_jax.core.axes import BATCH, MLP, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.dropout import Dropout
from vit_jax.nn.initialization import VIT, Initialization
from vit_jax.nn.linear import Linear
from vit_jax.nn.precision import Precision

# The released weights were trained with the tanh approximation; "exact" is the erf form.
GELUS = {
    "tanh": functools.partial(jax.nn.gelu, approximate=True),
    "exact": functools.partial(jax.nn.gelu, approximate=False),
}
MLPS = ("mlp", "swiglu", "geglu")


class Mlp(nnx.Module):
    """dense(M), GELU, dropout, dense(D).

    Gated (arXiv 2002.05202), the first is two: their outputs are multiplied, one of them behind a
    SiLU ("swiglu") or GELU ("geglu"). M is then the width of each.
    """

    def __init__(
        self,
        width: int,
        mlp_dim: int,
        *,
        gelu: str,
        kind: str = "mlp",
        bias: bool = True,
        dropout: float,
        start: Initialization = VIT,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        init: dict[str, Any] = {
            "kernel_init": start.kernel,
            "bias_init": start.mlp_bias,
            "bias": bias,
            "precision": precision,
            "rngs": rngs,
        }
        self.fc1 = Linear((width,), (mlp_dim,), (WIDTH,), (MLP,), **init)
        self.fc2 = Linear((mlp_dim,), (width,), (MLP,), (WIDTH,), **init)
        if kind != "mlp":
            self.gate = Linear((width,), (mlp_dim,), (WIDTH,), (MLP,), **init)
        self.dropout = Dropout(dropout)
        self.kind = kind
        self.gelu = gelu

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """[B, N, D] -> [B, N, D]; key: of the dropout, None in evaluation."""
        x = constrain(self._hidden(x), BATCH, TOKENS, MLP)
        x = self.dropout(x, key)
        return constrain(self.fc2(x), BATCH, TOKENS, STREAM)

    def _hidden(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, M]."""
        if self.kind == "mlp":
            return GELUS[self.gelu](self.fc1(x))
        activation = jax.nn.silu if self.kind == "swiglu" else GELUS[self.gelu]
        return activation(self.gate(x)) * self.fc1(x)
