"""The encoder block: attention, then MLP, each after a norm and added to its input (Eq. 2-3)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, MLP, STREAM, TOKENS, WIDTH, constrain
from vit_jax.nn.attention import SelfAttention
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.linear import Linear, param
from vit_jax.nn.norm import norm
from vit_jax.nn.posemb import Positions
from vit_jax.nn.regularization import Dropout, drop_branch


class Block(nnx.Module):
    """A pre-norm encoder block.

    Args:
      spec: with `parallel`, attention and MLP share one norm and input,
        x + attention(norm(x)) + mlp(norm(x)) (arXiv 2302.05442, section 2); with `layer_scale`,
        LayerScale is applied before each residual.
      positions: makes a position embedding for this block alone.
      scanned: whether a loop runs it.
      attention: makes its attention.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        positions: Callable[[nnx.Rngs], Positions] | None = None,
        scanned: bool = False,
        attention: Callable[..., SelfAttention] = SelfAttention,
        rngs: nnx.Rngs,
    ):
        of_norm: Any = {"epsilon": spec.norm_epsilon, "precision": spec.precision, "rngs": rngs}
        self.norm1 = norm(spec.norm, spec.width, WIDTH, **of_norm)
        self.attention = attention(spec, rngs=rngs)
        if not spec.parallel:
            self.norm2 = norm(spec.norm, spec.width, WIDTH, **of_norm)
        self.mlp = Mlp(spec, scanned=scanned, rngs=rngs)
        self.dropout = Dropout(spec.dropout)
        if spec.layer_scale:
            self.scale1 = LayerScale(spec.width, spec.layer_scale, rngs=rngs)
            self.scale2 = LayerScale(spec.width, spec.layer_scale, rngs=rngs)
        self.scaled = bool(spec.layer_scale)
        self.parallel = spec.parallel
        self.positions = positions(rngs) if positions else None

    @property
    def each(self) -> tuple["Block", ...]:
        """The blocks of one attention that this consists of."""
        return (self,)

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | None = None,
        positions: Positions | None = None,
        results: int | None = None,
        offset: jax.Array | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D], or [B, results, D].

        Args:
          x: tokens.
          key: for dropout and stochastic depth; None in evaluation.
          drop_rate: probability that an example skips a branch; None: never.
          positions: a position embedding that all blocks share.
          results: compute the first tokens alone, so many; they attend to all N.
          offset: added to attention's weights, for gradients by them (SelfAttention).
        """
        tokens = x.shape[1]
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        x, normed, positions = self._entered(x, positions)
        y = self.attention(normed, positions, results, offset)
        y = self.dropout(y, keys[0], tokens)
        y = self.scale1(y) if self.scaled else y
        x = x[:, :results] + drop_branch(y, drop_rate, keys[1])
        y = self.mlp(normed[:, :results] if self.parallel else self.norm2(x), keys[2], tokens)
        y = self.dropout(y, keys[3], tokens)
        y = self.scale2(y) if self.scaled else y
        return x + drop_branch(y, drop_rate, keys[4])

    def attention_weights(self, x: jax.Array, positions: Positions | None = None) -> jax.Array:
        """[B, N, D], as they enter the block -> [B, H, N, N] float32, see SelfAttention.weights."""
        _, normed, positions = self._entered(x, positions)
        return self.attention.weights(normed, positions)

    def _entered(
        self, x: jax.Array, shared: Positions | None
    ) -> tuple[jax.Array, jax.Array, Positions | None]:
        """The tokens with their positions, the same after the first norm, and the positions."""
        positions = shared if self.positions is None else self.positions
        x = x if positions is None else positions(x)
        return x, self.norm1(x), positions


class Mlp(nnx.Module):
    """dense(M), GELU, dropout, dense(D).

    When gated (arXiv 2002.05202), the first layer is two: their outputs are multiplied, one of them
    after a SiLU ("swiglu") or GELU ("geglu"). M is then the width of each.
    """

    def __init__(self, spec: BlockSpec, *, scanned: bool = False, rngs: nnx.Rngs):
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
        self.gelu = functools.partial(gelu, spec.gelu, scanned)

    def __call__(self, x: jax.Array, key: jax.Array | None, tokens: int | None = None) -> jax.Array:
        """[B, N, D] -> [B, N, D]; key and `tokens`: for dropout, no key in evaluation."""
        x = constrain(self._hidden(x), BATCH, TOKENS, MLP)
        x = self.dropout(x, key, tokens)
        return constrain(self.fc2(x), BATCH, TOKENS, STREAM)

    def _hidden(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, M]."""
        # The released weights were trained with the tanh approximation; "exact" is the erf form.
        activation = jax.nn.silu if self.kind == "swiglu" else self.gelu
        if self.kind == "mlp":
            return activation(self.fc1(x))
        return activation(self.gate(x)) * self.fc1(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gelu(form: str, scanned: bool, x: jax.Array) -> jax.Array:
    """GELU (arXiv 1606.08415) in one of the forms of BlockSpec.gelu.

    The backward pass starts from x, which the product before it has written anyway. JAX's own
    keeps a second array of this size, the largest of a block at few tokens. Not for forward-mode
    differentiation. `scanned`: whether both passes are loops.
    """
    return jax.nn.gelu(x, approximate=form == "tanh")


def _gelu_forward(form: str, scanned: bool, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu(form, scanned, x), x


def _gelu_backward(form: str, scanned: bool, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # Else XLA would keep the forward pass's tanh after all. What one loop keeps for another, it
    # cannot change, and would copy before a barrier.
    x = x if scanned else jax.lax.optimization_barrier(x)
    return jax.vjp(lambda x: jax.nn.gelu(x, approximate=form == "tanh"), x)[1](dy)


gelu.defvjp(_gelu_forward, _gelu_backward)


class LayerScale(nnx.Module):
    """A learned factor for each channel of a branch (arXiv 2103.17239)."""

    def __init__(self, width: int, initial_value: float, *, rngs: nnx.Rngs):
        init = initializers.constant(initial_value)
        self.scale = param(init, (width,), (WIDTH,), rngs.params())

    def __call__(self, y: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return y * self.scale[...].astype(y.dtype)
