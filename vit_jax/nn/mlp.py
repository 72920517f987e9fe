"""The dense layers of a block: two with a GELU between them (section 3.1), or gated ones."""

import functools
from typing import Any

import jax
from flax import nnx

from vit_jax.core.axes import BATCH, MLP, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.linear import Linear
from vit_jax.nn.regularization import Dropout


class Mlp(nnx.Module):
    """dense(M), GELU, dropout, dense(D).

    When gated (arXiv 2002.05202), the first layer is two: their outputs are multiplied, one of them
    after a SiLU ("swiglu") or GELU ("geglu"). M is then the width of each.
    """

    def __init__(self, spec: BlockSpec, *, rngs: nnx.Rngs):
        init: dict[str, Any] = {
            "kernel_init": spec.start.kernel,
            "bias_init": spec.start.mlp_bias,
            "bias": spec.dense_bias,
            "precision": spec.precision,
            "rngs": rngs,
        }
        width, mlp_dim = spec.width, spec.mlp_dim
        self.fc1 = Linear((width,), (mlp_dim,), (WIDTH,), (MLP,), **init)
        self.fc2 = Linear((mlp_dim,), (width,), (MLP,), (WIDTH,), **init)
        if spec.mlp != "mlp":
            self.gate = Linear((width,), (mlp_dim,), (WIDTH,), (MLP,), **init)
        self.dropout = Dropout(spec.dropout)
        self.kind = spec.mlp
        self.gelu = spec.gelu

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """[B, N, D] -> [B, N, D]; key: for dropout, None in evaluation."""
        x = constrain(self._hidden(x), BATCH, TOKENS, MLP)
        x = self.dropout(x, key)
        return constrain(self.fc2(x), BATCH, TOKENS, STREAM)

    def _hidden(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, M]."""
        # The released weights were trained with the tanh approximation; "exact" is the erf form.
        gelu = functools.partial(jax.nn.gelu, approximate=self.gelu == "tanh")
        if self.kind == "mlp":
            return gelu(self.fc1(x))
        activation = jax.nn.silu if self.kind == "swiglu" else gelu
        return activation(self.gate(x)) * self.fc1(x)
