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
from vit_jax.models.layers import faster
from vit_jax.models.layers.initialization import MAKERS, ZEROS, Initialization
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.kernels.choice import CHOICES
from vit_jax.models.layers.kernels.xla import PROJECTED, Projected, normalised_weights
from vit_jax.models.layers.linear import DTYPES, Initializer, Linear, Precision, param
from vit_jax.models.layers.logits import TRANSFORMS, LogitSpec, LogitTransform, make_transforms
from vit_jax.models.layers.norm import EPSILON, NORMS, norm
from vit_jax.models.layers.posemb import Positions
from vit_jax.models.layers.regularization import Dropout, drop_branch, split_key


class Block(nnx.Module):
    """A pre-norm encoder block.

    Args:
      spec: with `parallel`, attention and MLP share one norm and input,
        x + attention(norm(x)) + mlp(norm(x)) (arXiv 2302.05442, section 2); with `layer_scale`,
        LayerScale is applied before each residual, with `norm_branch`, the norm; with
        `norm_stream`, the second norm is of the stream, y + mlp(y) of y = norm(x +
        attention(norm(x))).
      attention: makes its attention.
    """

    def __init__(
        self,
        spec: "BlockSpec",
        *,
        attention: "Callable[..., SelfAttention] | None" = None,
        rngs: nnx.Rngs,
    ):
        make_norm = functools.partial(spec.make_norm, rngs)
        self.norm1 = identity if spec.norm_branch else make_norm()
        self.attention = (attention or make_attention)(spec, rngs=rngs)
        self.norm2 = None if spec.parallel else identity if spec.norm_branch else make_norm()
        second_norm = normed_stream if spec.norm_stream else normed_branch
        self.between = shared_norm if spec.parallel else second_norm
        self.mlp = make_mlp(spec, rngs=rngs)
        self.dropout = Dropout(spec.dropout)
        make_scale: Callable[[], Any] = lambda: identity
        if spec.layer_scale:
            make_scale = functools.partial(LayerScale, spec.width, spec.layer_scale, rngs=rngs)
        elif spec.norm_branch:
            make_scale = make_norm
        self.scale1, self.scale2 = make_scale(), make_scale()

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, drop_rate: jax.Array | None = None
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D].

        key: for dropout and stochastic depth; None in evaluation. drop_rate: probability that an
        example skips a branch; None: never.
        """
        return self._compute(x, key, drop_rate, self.attention.attend)

    def first_tokens(
        self, number: int, x: jax.Array, key: Any = None, drop_rate: Any = None
    ) -> jax.Array:
        """[B, N, D] -> [B, number, D]: the first of the block's tokens, without the others.

        They attend to all N; random numbers are drawn for all, so results are the same.
        """
        attend = functools.partial(self.attention.attend_first, number)
        return self._compute(x, key, drop_rate, attend)

    def _compute(
        self, x: jax.Array, key: Any, drop_rate: Any, attend: Callable[..., jax.Array]
    ) -> jax.Array:
        """The tokens that `attend` gives, the first or all."""
        keys, tokens = split_key(key, 5), x.shape[1]
        normed = self.norm1(x)
        y = checkpoint_name(attend(self.project(normed), keys[0]), "block/attention")
        number = y.shape[1]
        y = self.dropout(y, keys[0], tokens)
        x = x[:, :number] + drop_branch(self.scale1(y), drop_rate, keys[1])  # Eq. 2
        x, y = self.between(self, x, normed[:, :number])
        y = checkpoint_name(self.mlp(y, keys[2], tokens), "block/mlp")
        y = self.dropout(y, keys[3], tokens)
        return x + drop_branch(self.scale2(y), drop_rate, keys[4])  # Eq. 3

    def project(self, normed: jax.Array) -> Projected:
        """[B, N, D] after the first norm -> the queries, keys and values of its attention."""
        return self.attention.project(normed)

    @property
    def attention_blocks(self) -> tuple["Block", ...]:
        """The blocks with one attention each that this block consists of."""
        return (self,)

    @property
    def sharing_blocks(self) -> tuple["SharingBlock", ...]:
        """The attention blocks that have the position embedding of the whole model."""
        return ()

    def attention_weights(self, x: jax.Array) -> jax.Array:
        """[B, N, D], as they enter the block -> [B, H, N, N] float32, see SelfAttention.weights."""
        return self.attention.weights(self.project(self.norm1(x)))

    def values(self, x: jax.Array) -> jax.Array:
        """[B, N, D], as they enter the block -> its attention's values, [B, N, H, K]."""
        return self.project(self.norm1(x)).value


# Between attention and MLP: the tokens that the MLP's output is added to, and its input.


def normed_branch(block: Block, x: jax.Array, normed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The input is a norm of the tokens after attention."""
    assert block.norm2 is not None
    return x, block.norm2(x)


def normed_stream(block: Block, x: jax.Array, normed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both are that norm (the code of arXiv 2104.05704)."""
    _, y = normed_branch(block, x, normed)
    return y, y


def shared_norm(block: Block, x: jax.Array, normed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The MLP is beside attention, with the same input."""
    return x, normed


class PositionedBlock(Block):
    """A block with a position embedding."""

    def __init__(
        self,
        spec: "BlockSpec",
        *,
        positions: Callable[[nnx.Rngs], Positions],
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        super().__init__(spec, rngs=rngs, **arguments)
        self.positions = positions(rngs)

    def _compute(self, x: jax.Array, *inputs: Any) -> jax.Array:
        """Adds the positions to the tokens, if they act there."""
        return super()._compute(self.positions(x), *inputs)

    def project(self, normed: jax.Array) -> Projected:
        return self.positions.inside(super().project(normed))

    def attention_weights(self, x: jax.Array) -> jax.Array:
        return super().attention_weights(self.positions(x))

    def values(self, x: jax.Array) -> jax.Array:
        return super().values(self.positions(x))


class SharingBlock(PositionedBlock):
    """A block whose position embedding all blocks share: it is set before each call."""

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs, **arguments: Any):
        super().__init__(spec, positions=lambda _: Positions(), rngs=rngs, **arguments)

    @property
    def sharing_blocks(self) -> tuple["SharingBlock", ...]:
        return (self,)


class SelfAttention(nnx.Module):
    """Self-attention with query, key and value from one product."""

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        self.qkv = input_projections(3, spec, bias=spec.qkv_bias == "all", rngs=rngs)
        self.out = output_projection(spec, bias=spec.dense_bias, rngs=rngs)
        self.norm = spec.make_norm(rngs) if spec.attention_norm else None
        self.finish = _normed_heads if spec.attention_norm else _as_mixed
        self.precision, self.kernel = spec.precision, spec.attention

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]; attention over N."""
        return self.attend(self.project(x))

    def project(self, x: jax.Array) -> Projected:
        """[B, N, D] -> queries, keys and values, [B, N, H, K] each."""
        qkv = constrain(self.qkv(x), BATCH, TOKENS, QKV, HEADS, HEAD_SIZE)
        qkv = checkpoint_name(qkv, PROJECTED)
        return Projected(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], qkv)

    def attend(self, projected: Projected, key: jax.Array | None = None) -> jax.Array:
        """-> [B, N, D]: the values mixed by the weights, the heads combined.

        key: for dropout of the weights; None in evaluation.
        """
        return self._combine(self.mix(projected, key))

    def attend_first(self, number: int, projected: Projected, key: jax.Array | None) -> jax.Array:
        """-> [B, number, D]: `attend` for the first queries, which are cheap by any program."""
        return self._combine(self.mix_first(projected, number, key))

    def _combine(self, mixed: jax.Array) -> jax.Array:
        return constrain(self.out(self.finish(self, mixed)), BATCH, TOKENS, STREAM)

    def mix(self, projected: Projected, key: jax.Array | None) -> jax.Array:
        """-> [B, N, H, K]."""
        return choice.attend(self.kernel, projected, self.precision.softmax)

    def mix_first(self, projected: Projected, number: int, key: jax.Array | None) -> jax.Array:
        """-> [B, number, H, K]."""
        return choice.attend_first(self.kernel, projected, self.precision.softmax, number)

    def weights(self, projected: Projected) -> jax.Array:
        """-> [B, H, N, N] float32: how much each token takes from each; rows sum to 1."""
        return normalised_weights(projected.query, projected.key, projected.transforms)


# What the output projection takes of the mixed values, [B, N, H, K] -> the same shape.


def _as_mixed(attention: SelfAttention, mixed: jax.Array) -> jax.Array:
    return mixed


def _normed_heads(attention: SelfAttention, mixed: jax.Array) -> jax.Array:
    """A norm over all heads' channels (arXiv 2210.06423, section 2)."""
    assert attention.norm is not None
    return attention.norm(mixed.reshape(*mixed.shape[:-2], -1)).reshape(mixed.shape)


class AdjustedAttention(SelfAttention):
    """Self-attention whose queries, keys, values or logits are adjusted behind their product.

    `qkv_bias=query_value` adds biases to queries and values alone; `qk_norm` is a norm without bias
    over each head's query and key (arXiv 2302.05442, section 2). Logits are changed by logits.py.
    """

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        super().__init__(spec, rngs=rngs)
        self.biased, self.normed = spec.qkv_bias == "query_value", spec.qk_norm
        self.logits = make_transforms(spec, rngs=rngs)
        self.value_residual = ValueResidual(spec, rngs=rngs) if spec.value_residual else identity
        head_size = spec.width // spec.num_heads
        if self.biased:
            shape, axes = (spec.num_heads, head_size), (HEADS, HEAD_SIZE)
            self.query_bias = param(ZEROS, shape, axes, rngs.params())
            self.value_bias = param(ZEROS, shape, axes, rngs.params())
        if self.normed:
            make_norm = functools.partial(
                norm, "rms" if spec.norm == "rms" else "layer_no_bias", head_size, HEAD_SIZE,
                epsilon=spec.norm_epsilon, precision=spec.precision, rngs=rngs,
            )  # fmt: skip
            self.query_norm, self.key_norm = make_norm(), make_norm()

    def project(self, x: jax.Array) -> Projected:
        query, key, value, *_ = super().project(x)
        if self.biased:
            query = query + self.query_bias[...].astype(query.dtype)
            value = value + self.value_bias[...].astype(value.dtype)
        if self.normed:
            query, key = self.query_norm(query), self.key_norm(key)
        value = self.value_residual(value)
        transforms = (LogitTransform(n, *self.logits[n]()) for n in TRANSFORMS if n in self.logits)
        return Projected(query, key, value, None, tuple(transforms))


class ValueResidual(nnx.Module):
    """(1 - lambda) v + lambda v_1, of the first block's values v_1 (arXiv 2410.17897).

    Each block learns its lambda. The first block's own values stay what they are.
    """

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        init = initializers.constant(spec.value_residual)
        self.share = param(init, (), (), rngs.params())
        self.first: Any = nnx.data(None)  # v_1, set by the model before each call

    def __call__(self, value: jax.Array) -> jax.Array:
        """[B, N, H, K] -> [B, N, H, K]."""
        first = value if self.first is None else self.first
        return value + self.share[...].astype(value.dtype) * (first - value)


class DroppedAttention(AdjustedAttention):
    """Self-attention with dropout of its normalised weights in training, by JAX's own program."""

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        super().__init__(spec, rngs=rngs)
        self.dropout = Dropout(spec.attention_dropout)

    def mix(self, projected: Projected, key: jax.Array | None) -> jax.Array:
        if key is None:
            return super().mix(projected, None)
        return self.mix_first(projected, projected.query.shape[1], key)

    def mix_first(self, projected: Projected, number: int, key: jax.Array | None) -> jax.Array:
        if key is None:
            return super().mix_first(projected, number, None)
        query, keys, value, _, transforms = projected.first(number)
        weights = normalised_weights(query, keys, transforms)
        # Queries in front, as Dropout has its tokens; another key than that of the output.
        by_query = jnp.swapaxes(weights, 1, 2)
        key = jax.random.fold_in(key, 1)
        kept = self.dropout(by_query, key, keys.shape[1]).astype(value.dtype)
        mixed = jnp.einsum("bqhs,bshk->bqhk", kept, value, preferred_element_type=jnp.float32)
        return mixed.astype(value.dtype)


def make_attention(spec: "BlockSpec", *, rngs: nnx.Rngs) -> SelfAttention:
    """The attention of these fields."""
    if spec.attention_dropout:
        return DroppedAttention(spec, rngs=rngs)
    adjusts = (
        spec.qk_norm or spec.qkv_bias == "query_value"
        or spec.value_residual or spec.logit_transforms
    )  # fmt: skip
    return (AdjustedAttention if adjusts else SelfAttention)(spec, rngs=rngs)


def _dense(
    sizes: tuple[int, int], axes: tuple[str, str], spec: "BlockSpec", rngs: nnx.Rngs
) -> Linear:
    """A dense layer of an MLP."""
    return Linear(
        sizes[:1], sizes[1:], axes[:1], axes[1:],
        kernel_init=spec.init.kernel, bias_init=spec.init.mlp_bias, bias=spec.dense_bias,
        precision=spec.precision, rngs=rngs,
    )  # fmt: skip


def quick_gelu(x: jax.Array) -> jax.Array:
    """x * sigmoid(1.702 x), as in the code of CLIP (arXiv 2103.00020)."""
    return x * jax.nn.sigmoid(1.702 * x)


# The released weights were trained with the tanh approximation; "exact" is the erf form.
GELUS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": functools.partial(jax.nn.gelu, approximate=True),
    "exact": functools.partial(jax.nn.gelu, approximate=False),
    "quick": quick_gelu,
}


class Mlp(nnx.Module):
    """dense(M), GELU, dropout, dense(D); with `mlp_norm`, a norm before the last."""

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        width, mlp_dim = spec.width, spec.mlp_dim
        self.fc1 = _dense((width, mlp_dim), (WIDTH, MLP), spec, rngs)
        self.fc2 = _dense((mlp_dim, width), (MLP, WIDTH), spec, rngs)
        self.dropout = Dropout(spec.dropout)
        self.norm = spec.make_norm(rngs, mlp_dim, MLP) if spec.mlp_norm else identity
        self.activation: Callable[[jax.Array], jax.Array] = GELUS[spec.gelu]

    def __call__(self, x: jax.Array, key: jax.Array | None, tokens: int | None = None) -> jax.Array:
        """[B, N, D] -> [B, N, D]; the arguments of `Dropout`."""
        hidden = self.norm(self.dropout(self.hidden(x), key, tokens))
        return constrain(self.fc2(hidden), BATCH, TOKENS, STREAM)

    def hidden(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, M]: the hidden layer."""
        activation = faster.replacing("activation", self.activation)
        return constrain(activation(self.fc1(x)), BATCH, TOKENS, MLP)


class GatedMlp(Mlp):
    """An MLP whose first layer is two (arXiv 2002.05202), with M the width of each.

    Their outputs are multiplied, one of them after a SiLU ("swiglu") or GELU ("geglu").
    """

    def __init__(self, spec: "BlockSpec", *, rngs: nnx.Rngs):
        super().__init__(spec, rngs=rngs)
        self.gate = _dense((spec.width, spec.mlp_dim), (WIDTH, MLP), spec, rngs)
        self.activation = jax.nn.silu if spec.mlp == "swiglu" else self.activation

    def hidden(self, x: jax.Array) -> jax.Array:
        activation = faster.replacing("activation", self.activation)
        return constrain(activation(self.gate(x)) * self.fc1(x), BATCH, TOKENS, MLP)


def make_mlp(spec: "BlockSpec", *, rngs: nnx.Rngs) -> Mlp:
    """The MLP of these fields."""
    return (Mlp if spec.mlp == "mlp" else GatedMlp)(spec, rngs=rngs)


def identity(x: jax.Array) -> jax.Array:
    """A layer that is not there."""
    return x


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
        kernel_init=functools.partial(_in_init, spec.init.qkv or spec.init.kernel),
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
class BlockSpec(LogitSpec):
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
        "tanh",
        "`tanh` [this], `exact`, or `quick`, CLIP's x * sigmoid(1.702 x)",
        choices=GELUS,
        trained=HIDDEN,
        elsewhere={"huggingface": ANY, "timm": ANY, "google_npz": ("tanh", "exact")},
    )
    parallel: bool = field(
        False, "attention and MLP side by side behind one norm [false]", trained=IN_SHAPES
    )
    norm_stream: bool = field(
        False,
        "the second norm is of the stream: y + mlp(y) of y = norm(x + attention(norm(x))), as in "
        "the code of ViT-Lite [false]",
        trained=HIDDEN,
    )
    norm_branch: bool = field(
        False,
        "norms of what attention and MLP give, before it is added, instead of what they take "
        "(arXiv 2111.09883) [false]",
        trained=IN_SHAPES,
    )
    qk_norm: bool = field(
        False, "a norm over each head's queries and keys [false]", trained=IN_SHAPES
    )
    rotary_base: float = field(
        100.0,
        "of rotary positions, whose slowest frequency is nearly 1 / `rotary_base` of the fastest "
        "[100]",
        bounds=(1, 1e9),
        trained=HIDDEN,
    )
    attention_norm: bool = field(
        False,
        "a norm of attention's mixed values, before their projection [false]",
        trained=IN_SHAPES,
    )
    mlp_norm: bool = field(
        False, "a norm of the MLP's hidden layer, before its last matrix [false]", trained=IN_SHAPES
    )
    qkv_bias: str = field(
        "all",
        "which have a bias: `all` of query, key and value [this], `query_value`, or `none`",
        choices=("all", "query_value", "none"),  # DINOv3's key has none (arXiv 2508.10104)
        trained=IN_SHAPES,
        elsewhere={"huggingface": ("all", "none"), "timm": ("all", "none"), "google_npz": ("all",)},
    )
    value_residual: float = field(
        0.0,
        "first lambda of values (1 - lambda) v + lambda v_1, where v_1 are the first block's and "
        "each block learns its lambda (arXiv 2410.17897); 0: without [0]",
        bounds=(0, 1),
        trained=IN_SHAPES,
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
    attention_dropout: float = field(
        0.0, "rate of the dropout of attention's weights [0]", bounds=(0, 1)
    )
    initialization: str = field(
        "vit",
        "how parameters start: as in the code of the paper, `vit` [this], of `big_vision`, of "
        "DeiT III, `deit`, of `vit_lite` or of `spt`: see "
        "[variants](vit_variants.md#how-parameters-start)",
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
        return dataclasses.replace(super().precision, softmax=jnp.dtype(self.softmax_dtype))

    def make_norm(self, rngs: nnx.Rngs, width: int | None = None, axis: str = WIDTH) -> nnx.Module:
        """A norm of tokens; or of a last axis of another width and name."""
        return norm(
            self.norm, width or self.width, axis,
            epsilon=self.norm_epsilon, precision=self.precision, rngs=rngs,
        )  # fmt: skip

    @property
    def init(self) -> Initialization:
        """The initializers of the parameters."""
        return MAKERS[self.initialization](self.width)
