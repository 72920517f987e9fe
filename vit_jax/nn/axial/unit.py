"""A ResNet's unit with attention along columns, then along rows, for its 3 x 3 convolution.

Position-sensitive axial attention (arXiv 2003.07853, equation 4), with the norms of Scenic's
implementation (projects/baselines/axial_resnet.py): group norms, of each line by itself, behind the
projection and behind the mixed values, and none of the logits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from vit_jax.core.axes import (
    BATCH,
    CHANNELS,
    HEAD_SIZE,
    POSITIONS,
    STREAM,
    TOKENS,
    WIDTH,
    constrain,
)
from vit_jax.nn.axial.lines import COLUMN, ROW, Grid, joined, lines
from vit_jax.nn.kernels.saved import MIXED, PROJECTED, WEIGHTS
from vit_jax.nn.linear import Linear, param
from vit_jax.nn.resnet import StdConv, group_norm
from vit_jax.nn.resnet_spec import EXPANSION, ResNetSpec


class PositionSensitiveAttention(nnx.Module):
    """Attention along a line, with learned offsets in queries, keys and values.

    For query o and key p the logit is q_o k_p + q_o a_(p-o) + k_p b_(p-o), and what is mixed
    v_p + c_(p-o). Queries and keys have half as many channels as values, and the logits are not
    scaled. All heads share the offsets, in whose table p - o is row p - o + n - 1: a, b and c side
    by side.

    Args:
      channels: C, of each position.
      num_heads: H; C must divide by 2 H.
      length: n, positions of a line.
    """

    def __init__(
        self, channels: int, num_heads: int, length: int, spec: ResNetSpec, *, rngs: nnx.Rngs
    ):
        self.num_heads, self.length, self.precision = num_heads, length, spec.precision
        # As in the authors' code (csrhddlam/axial-deeplab), normal by the number of inputs.
        self.query_key_value = Linear(
            (channels,),
            (2 * channels,),
            (WIDTH,),
            (CHANNELS,),
            kernel_init=initializers.variance_scaling(1.0, "fan_in", "normal"),
            bias=False,
            precision=spec.precision,
            rngs=rngs,
        )
        self.norm1 = group_norm(2 * channels, CHANNELS, spec, rngs)
        head_size = channels // num_heads
        init, shape = initializers.normal(head_size**-0.5), (2 * length - 1, 2 * head_size)
        self.offsets = param(init, shape, (POSITIONS, HEAD_SIZE), rngs.params())
        self.norm2 = group_norm(channels, CHANNELS, spec, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, n, C] -> [B, n, C]."""
        x = checkpoint_name(self.query_key_value(x), PROJECTED)
        x = _of_lines(self.norm1, constrain(x, BATCH, TOKENS, CHANNELS))
        query, key, value = self._parts(x.reshape(*x.shape[:2], self.num_heads, -1))
        a, b, c = self._parts(self._table().astype(x.dtype))
        # Rounded to the computation's dtype before they are added: XLA for CPUs has no products of
        # bfloat16 to float32 in the backward pass.
        product = lambda *operands: jnp.einsum(*operands).astype(jnp.float32)
        logits = product("bqhd,bkhd->bhqk", query, key)
        logits += product("bqhd,qkd->bhqk", query, a) + product("bkhd,qkd->bhqk", key, b)
        weights = checkpoint_name(jax.nn.softmax(logits).astype(x.dtype), WEIGHTS)
        mixed = product("bhqk,bkhd->bqhd", weights, value)
        mixed += product("bhqk,qkd->bqhd", weights, c)
        mixed = checkpoint_name(mixed.astype(x.dtype), MIXED).reshape(*x.shape[:2], -1)
        return _of_lines(self.norm2, constrain(mixed, BATCH, TOKENS, CHANNELS))

    def _table(self) -> jax.Array:
        """[n, n, 2K]: of each query and key."""
        place = np.arange(self.length)
        return self.offsets[...][place - place[:, None] + self.length - 1]

    def _parts(self, x: jax.Array) -> list[jax.Array]:
        """[..., 2K] -> [..., K / 2], [..., K / 2], [..., K]."""
        half = x.shape[-1] // 4
        return jnp.split(x, (half, 2 * half), axis=-1)


def _of_lines(norm: nnx.Module, x: jax.Array) -> jax.Array:
    """A norm of feature maps, for lines [B, n, C]."""
    return norm(x[:, :, None])[:, :, 0]


class AxialUnit(nnx.Module):
    """A bottleneck unit: [B, H, W, I] -> [B, H / stride, W / stride, O]; O = 4 * hidden.

    Norms and relus are behind the convolutions, as in a hybrid's ResNet; a stride is the mean over
    2 x 2 positions behind the attention.

    Args:
      channels, stride, projection: as of `Bottleneck`.
      num_heads: of both attentions.
      size: (H, W).
    """

    def __init__(
        self,
        channels: tuple[int, int],
        spec: ResNetSpec,
        *,
        num_heads: int,
        size: Grid,
        stride: int,
        projection: bool,
        rngs: nnx.Rngs,
    ):
        inputs, hidden = channels
        outputs = EXPANSION * hidden
        conv: Any = functools.partial(StdConv, spec=spec, rngs=rngs)
        norm: Any = functools.partial(group_norm, spec=spec, rngs=rngs)
        along = functools.partial(PositionSensitiveAttention, hidden, num_heads, rngs=rngs)
        self.conv1 = conv(1, (inputs, hidden), (WIDTH, CHANNELS))
        self.norm1 = norm(hidden, CHANNELS)
        self.column, self.row = along(size[0], spec), along(size[1], spec)
        self.conv3 = conv(1, (hidden, outputs), (CHANNELS, WIDTH))
        # A unit starts as its shortcut alone.
        self.norm3 = norm(outputs, WIDTH, scale_init=initializers.zeros)
        if projection:
            self.projection = conv(1, (inputs, outputs), (STREAM, WIDTH), stride=stride)
            self.projection_norm = norm(outputs, WIDTH)
        self.size, self.stride, self.projects = size, stride, projection

    def __call__(self, x: jax.Array, key: Any = None, drop_rate: Any = None) -> jax.Array:
        """Applies the unit; `key` and `drop_rate`, which nn/stack.py passes, are not used."""
        shortcut = self.projection_norm(self.projection(x)) if self.projects else x
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        shape = y.shape
        y = y.reshape(shape[0], -1, shape[3])
        for of, attention in ((COLUMN, self.column), (ROW, self.row)):
            y = joined(attention(lines(y, self.size, of)), self.size, of)
        y = jax.nn.relu(_halved(y.reshape(shape)) if self.stride == 2 else y.reshape(shape))
        y = jax.nn.relu(shortcut + self.norm3(self.conv3(y)))
        return constrain(y, BATCH, None, None, STREAM)


def _halved(x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), C]: means, of fewer positions at odd ends."""
    mean = functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2), padding="SAME")
    return mean(x, count_include_pad=False)
