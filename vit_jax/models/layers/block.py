"""The encoder block: attention, then MLP, each after a norm and added to its input (Eq. 2-3).

First the block, then its parts, at the end its fields.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from vit_jax.core.axes import (
    BATCH,
    HEAD_SIZE,
    HEADS,
    MLP,
    QKV,
    STREAM,
    TOKENS,
    WIDTH,
    constrain,
)  # fmt: skip
from vit_jax.core.schema.fields import ABOVE_0, ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.models.layers.initialization import MAKERS, ZEROS, Initialization
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.kernels.choice import CHOICES, Projected
from vit_jax.models.layers.kernels.xla import PROJECTED, normalised_weights, scaled
from vit_jax.models.layers.linear import (
    DTYPES,
    Initializer,
    Linear,
    Numerics,
    Precision,
    param,
    recomputed,
)
from vit_jax.models.layers.norm import EPSILON, NORMS, norm
from vit_jax.models.layers.posemb import Positions
from vit_jax.models.layers.regularization import Dropout, drop_branch


class Block(nnx.Module):
    """A pre-norm encoder block.

    Args:
      spec: with `parallel`, attention and MLP share one norm and input,
        x + attention(norm(x)) + mlp(norm(x)) (arXiv 2302.05442, section 2); with `layer_scale`,
        LayerScale is applied before each residual.
      positions: makes a position embedding for this block alone.
      attention: makes its attention.
    """

    def __init__(
        self,
        spec: "BlockSpec",
        *,
        positions: Callable[[nnx.Rngs], Positions] | None = None,
        attention: "Callable[..., SelfAttention] | None" = None,
        rngs: nnx.Rngs,
    ):
        make_norm = functools.partial(
            norm, spec.norm, spec.width, WIDTH,
            epsilon=spec.norm_epsilon, precision=spec.precision, rngs=rngs,
        )  # fmt: skip
        self.norm1 = make_norm()
        self.attention = (attention or SelfAttention)(spec, rngs=rngs)
        self.norm2 = None if spec.parallel else make_norm()
        self.mlp = Mlp(spec, rngs=rngs)
        self.dropout = Dropout(spec.dropout)
        make_scale = lambda: LayerScale(spec.width, spec.layer_scale, rngs=rngs)
        self.scale1 = make_scale() if spec.layer_scale else None
        self.scale2 = make_scale() if spec.layer_scale else None
        self.positions = positions(rngs) if positions else None

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        drop_rate: jax.Array | None = None,
        positions: Positions | None = None,
        num_output_tokens: int | None = None,
        offset: jax.Array | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D], or [B, num_output_tokens, D].

        Args:
          x: tokens.
          key: for dropout and stochastic depth; None in evaluation.
          drop_rate: probability that an example skips a branch; None: never.
          positions: a position embedding that all blocks share.
          num_output_tokens: number of first tokens to compute, which attend to all N; None: all.
          offset: added to attention's weights, for gradients by them (SelfAttention).
        """
        first, num_tokens = slice(num_output_tokens), x.shape[1]
        keys = [None] * 5 if key is None else jax.random.split(key, 5)
        x, normed, positions = self._normed_with_positions(x, positions)

        y = self.attention(normed, positions, num_output_tokens, offset)
        y = self._regularised(y, self.scale1, drop_rate, keys[:2], num_tokens)
        x = x[:, first] + y  # Eq. 2

        y = self.mlp(self.norm2(x) if self.norm2 else normed[:, first], keys[2], num_tokens)
        y = self._regularised(y, self.scale2, drop_rate, keys[3:], num_tokens)
        return x + y  # Eq. 3

    def _normed_with_positions(
        self, x: jax.Array, shared: Positions | None
    ) -> tuple[jax.Array, jax.Array, Positions | None]:
        """Returns the tokens with positions, the same after the first norm, and the positions."""
        positions = self.positions or shared
        x = positions(x) if positions else x
        return x, self.norm1(x), positions

    def _regularised(
        self,
        y: jax.Array,
        scale: "LayerScale | None",
        drop_rate: jax.Array | None,
        keys: Any,
        num_tokens: int,
    ) -> jax.Array:
        """A branch before it is added: dropout, LayerScale, stochastic depth.

        num_tokens: N of the block's input; y may have the first of them only.
        """
        y = self.dropout(y, keys[0], num_tokens)
        y = scale(y) if scale else y
        return drop_branch(y, drop_rate, keys[1])

    @property
    def attention_blocks(self) -> tuple["Block", ...]:
        """The blocks with one attention each that this block consists of."""
        return (self,)

    def attention_weights(self, x: jax.Array, positions: Positions | None = None) -> jax.Array:
        """[B, N, D], as they enter the block -> [B, H, N, N] float32, see SelfAttention.weights."""
        _, normed, positions = self._normed_with_positions(x, positions)
        return self.attention.weights(normed, positions)


class SelfAttention(nnx.Module):
    """Self-attention with query, key and value from one product; no dropout on the weights.

    `qk_norm` adds a norm without bias over each head's query and key (arXiv 2302.05442,
    section 2).
    """

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        self.qkv = input_projections(3, spec, bias=spec.qkv_bias == "all", rngs=rngs)
        self.out = output_projection(spec, bias=spec.dense_bias, rngs=rngs)
        self.precision, self.kernel = spec.precision, spec.attention
        self.qkv_bias, self.qk_norm = spec.qkv_bias, spec.qk_norm
        head_size = spec.width // spec.num_heads
        if spec.qkv_bias == "query_value":
            shape, axes = (spec.num_heads, head_size), (HEADS, HEAD_SIZE)
            self.query_bias = param(ZEROS, shape, axes, rngs.params())
            self.value_bias = param(ZEROS, shape, axes, rngs.params())
        if spec.qk_norm:
            make_norm = functools.partial(
                norm, "rms" if spec.norm == "rms" else "layer_no_bias", head_size, HEAD_SIZE,
                epsilon=spec.norm_epsilon, precision=spec.precision, rngs=rngs,
            )  # fmt: skip
            self.query_norm, self.key_norm = make_norm(), make_norm()

    def __call__(
        self,
        x: jax.Array,
        positions: Positions | None = None,
        num_output_tokens: int | None = None,
        offset: jax.Array | None = None,
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D]; attention over N.

        Args:
          x: tokens.
          positions: a position embedding that acts inside attention.
          num_output_tokens: number of first tokens to compute; None: all.
          offset: [B, H, N, N], added to the normalised weights. The gradient by zeros here is the
            gradient by the weights, whatever program computes them; not with `num_output_tokens`.
        """
        projected = self._projected(x, positions)
        mixed = self._mix(projected, num_output_tokens)
        if offset is not None:
            value = projected.value
            mixed = mixed + jnp.einsum("bhqs,bshk->bqhk", offset.astype(value.dtype), value)
        return constrain(self.out(mixed), BATCH, TOKENS, STREAM)

    def weights(self, x: jax.Array, positions: Positions | None = None) -> jax.Array:
        """[B, N, D] -> [B, H, N, N] float32: how much each token takes from each; rows sum to 1."""
        projected = self._projected(x, positions)
        return normalised_weights(projected.query, projected.key, projected.bias)

    def _projected(self, x: jax.Array, positions: Positions | None) -> Projected:
        qkv = constrain(self.qkv(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        qkv = checkpoint_name(qkv, PROJECTED)
        query, key, value = (qkv[:, :, i] for i in range(3))
        if self.qkv_bias == "query_value":
            query = query + self.query_bias[...].astype(query.dtype)
            value = value + self.value_bias[...].astype(value.dtype)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        bias = None
        if positions is not None:
            query, key = positions.rotate(query), positions.rotate(key)
            bias = positions.bias(scaled(query))
        changed = positions is not None or self.qk_norm or self.qkv_bias == "query_value"
        return Projected(query, key, value, bias, None if changed else qkv)

    def _mix(self, projected: Projected, num_queries: int | None) -> jax.Array:
        return choice.attend(self.kernel, projected, self.precision.softmax, num_queries)


class Mlp(nnx.Module):
    """dense(M), GELU, dropout, dense(D).

    When gated (arXiv 2002.05202), the first layer is two: their outputs are multiplied, one of them
    after a SiLU ("swiglu") or GELU ("geglu"). M is then the width of each.
    """

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        init: dict[str, Any] = {
            "kernel_init": spec.init.kernel,
            "bias_init": spec.init.mlp_bias,
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
        self.gated = spec.mlp != "mlp"
        # The released weights were trained with the tanh approximation; "exact" is the erf form.
        self.activation = (
            jax.nn.silu
            if spec.mlp == "swiglu"
            else functools.partial(jax.nn.gelu, approximate=spec.gelu == "tanh")
        )

    def __call__(self, x: jax.Array, key: jax.Array | None, tokens: int | None = None) -> jax.Array:
        """[B, N, D] -> [B, N, D]; key and `tokens`: for dropout, no key in evaluation."""
        activation = recomputed(self.activation)
        x = activation(self.gate(x)) * self.fc1(x) if self.gated else activation(self.fc1(x))
        x = self.dropout(constrain(x, BATCH, TOKENS, MLP), key, tokens)
        return constrain(self.fc2(x), BATCH, TOKENS, STREAM)


class LayerScale(nnx.Module):
    """A learned factor for each channel of a branch (arXiv 2103.17239)."""

    def __init__(self, width: int, initial_value: float, *, rngs: nnx.Rngs):
        init = initializers.constant(initial_value)
        self.scale = param(init, (width,), (WIDTH,), rngs.params())

    def __call__(self, y: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return y * self.scale[...].astype(y.dtype)


def input_projections(
    number: int, spec: "BlockSpec", *, bias: bool = True, rngs: nnx.Rngs
) -> Linear:
    """[..., D] -> [..., number, H, K]: the queries, keys and values computed from the same tokens.

    Each of the `number` kernels is initialised separately, as a [D, D].
    """
    return Linear(
        (spec.width,),
        (number, spec.num_heads, spec.width // spec.num_heads),
        (WIDTH,),
        (QKV, HEADS, HEAD_SIZE),
        kernel_init=functools.partial(_in_init, spec.init.kernel),
        bias=bias,
        precision=spec.precision,
        rngs=rngs,
    )


def output_projection(spec: "BlockSpec", *, bias: bool = True, rngs: nnx.Rngs) -> Linear:
    """[..., H, K] -> [..., D]: the heads' outputs combined."""
    return Linear(
        (spec.num_heads, spec.width // spec.num_heads),
        (spec.width,),
        (HEADS, HEAD_SIZE),
        (WIDTH,),
        kernel_init=functools.partial(_out_init, spec.init.kernel),
        bias=bias,
        precision=spec.precision,
        rngs=rngs,
    )


def _in_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` applied to each of the [D, H * K] kernels separately."""
    width, number, num_heads, head_size = shape
    make = jax.vmap(lambda k: init(k, (width, num_heads * head_size), dtype), out_axes=1)
    return make(jax.random.split(key, number)).reshape(shape)


def _out_init(init: Initializer, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`init` applied to the kernel reshaped to [H * K, D]."""
    num_heads, head_size, width = shape
    return init(key, (num_heads * head_size, width), dtype).reshape(shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec(Numerics):
    """The fields of an encoder block."""

    width: int = field(doc="of the tokens, D", bounds=COUNT, trained=IN_SHAPES)
    mlp_dim: int = field(doc="hidden width of the MLPs", bounds=COUNT, trained=IN_SHAPES)
    num_heads: int = field(doc="of the attention", bounds=COUNT, trained=IN_SHAPES)
    mlp: str = field(
        "mlp",
        "`mlp` [this]; or gated, `swiglu` or `geglu`, with a third matrix; `mlp_dim` is then the "
        "width behind the gate",
        choices=("mlp", "swiglu", "geglu"),
        trained=HIDDEN,
    )
    gelu: str = field(
        "tanh", "`tanh` [this] or `exact`", choices=("tanh", "exact"), trained=HIDDEN, elsewhere=ANY
    )
    parallel: bool = field(
        False, "attention and MLP side by side behind one norm [false]", trained=IN_SHAPES
    )
    qk_norm: bool = field(
        False, "a norm over each head's queries and keys [false]", trained=IN_SHAPES
    )
    qkv_bias: str = field(
        "all",
        "which have a bias: `all` of query, key and value [this], `query_value`, or `none`",
        choices=("all", "query_value", "none"),  # DINOv3's key has none (arXiv 2508.10104)
        trained=IN_SHAPES,
        elsewhere={"huggingface": ("all", "none"), "timm": ("all", "none"), "google_npz": ("all",)},
    )
    dense_bias: bool = field(
        True,
        "whether attention's output and the dense layers of the MLP have one [true]",
        trained=IN_SHAPES,
    )
    norm: str = field(
        "layer",
        "`layer` [this], `layer_no_bias` without a learned offset, `rms`: not centred either",
        choices=NORMS,
        trained=HIDDEN,
    )
    norm_epsilon: float = field(
        EPSILON,
        "of these norms: what is added to the variance, 1e-6 [this]",
        bounds=(ABOVE_0, 1),
        trained=HIDDEN,
        elsewhere=ANY,
    )
    layer_scale: float = field(
        0.0,
        "initial value of LayerScale, a learned factor for each channel of a branch; 0: without "
        "[0]",
        bounds=(0, 1e3),
        trained=IN_SHAPES,
        elsewhere=ANY,
    )
    dropout: float = field(0.0, "rate [0]", bounds=(0, 1))
    initialization: str = field(
        "vit",
        "how parameters start: as in the code of the paper, `vit` [this], of `big_vision`, or of "
        "DeiT III, `deit`: see [variants](vit_variants.md#how-parameters-start)",
        choices=MAKERS,
    )
    softmax_dtype: str = field(
        "float32",
        "in what attention's softmax, but for its sums, is computed and kept: `float32` [this] or "
        "`bfloat16`, which moves less memory on a TPU",
        choices=DTYPES,
    )

    attention: str = field(
        "auto",
        "what computes attention: `xla`, JAX's compiler; `fused` or `splash`, kernels for TPUs; "
        "`cudnn`, for NVIDIA GPUs; or `auto`, by devices and model: see "
        "[variants](vit_variants.md#attention) [this]",
        choices=CHOICES,
    )

    @property
    def precision(self) -> Precision:
        """The dtypes of layers."""
        return dataclasses.replace(super().precision, softmax=jnp.dtype(self.softmax_dtype))

    @property
    def init(self) -> Initialization:
        """The initializers of the parameters."""
        return MAKERS[self.initialization](self.width)
