"""The residual units of a ResNet: 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CHANNELS, STREAM, WIDTH, constrain
from vit_jax.nn.convolution import Standardization, StdConv
from vit_jax.nn.group_norm import GroupNorm
from vit_jax.nn.precision import Precision

EXPANSION = 4  # channels of a unit's output, over those of its 3 x 3 convolution


@dataclasses.dataclass(frozen=True)
class Style:
    """In what the released ResNets differ besides their sizes.

    Attributes:
      pre_activation: norm and relu before each convolution, nothing behind the sum
        (arXiv 1603.05027: BiT); or behind each, and a relu behind the sum (the hybrids).
      pad: a kind of convolution.padding.
      standardize: of convolutions' weights.
      group_norm_epsilon: of group norms.
    """

    pre_activation: bool
    pad: str
    standardize: Standardization
    group_norm_epsilon: float


class Bottleneck(nnx.Module):
    """[B, H, W, I] -> [B, H / stride, W / stride, O]; O = 4 * hidden.

    Args:
      channels: (I, hidden).
      stride: of the 3 x 3 convolution, and of the shortcut.
      projection: whether the shortcut is a 1 x 1 convolution; without it I has to be O.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        stride: int,
        projection: bool,
        style: Style,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        inputs, hidden = channels
        outputs = EXPANSION * hidden
        common: dict[str, Any] = {"precision": precision, "rngs": rngs}
        conv = {"pad": style.pad, "standardize": style.standardize, **common}
        norm = {"epsilon": style.group_norm_epsilon, **common}
        self.conv1 = StdConv(1, (inputs, hidden), (WIDTH, CHANNELS), **conv)
        self.conv2 = StdConv(3, (hidden, hidden), (WIDTH, CHANNELS), stride=stride, **conv)
        self.conv3 = StdConv(1, (hidden, outputs), (CHANNELS, WIDTH), **conv)
        if projection:
            axes = (STREAM, WIDTH)
            self.projection = StdConv(1, (inputs, outputs), axes, stride=stride, **conv)
        if style.pre_activation:
            self.norm1 = GroupNorm(inputs, WIDTH, **norm)
            self.norm2 = GroupNorm(hidden, CHANNELS, **norm)
            self.norm3 = GroupNorm(hidden, CHANNELS, **norm)
        else:
            self.norm1 = GroupNorm(hidden, CHANNELS, **norm)
            self.norm2 = GroupNorm(hidden, CHANNELS, **norm)
            # At first a unit is its shortcut, as in the released code.
            self.norm3 = GroupNorm(outputs, WIDTH, scale_init=initializers.zeros, **norm)
            if projection:
                self.projection_norm = GroupNorm(outputs, WIDTH, **norm)
        self.projects, self.pre_activation = projection, style.pre_activation

    def __call__(self, x: jax.Array, key: Any = None, drop_rate: Any = None) -> jax.Array:
        """As the class says; `key` and `drop_rate`, which nn/stack.py gives, are not used."""
        y = self._pre_activated(x) if self.pre_activation else self._post_activated(x)
        return constrain(y, BATCH, None, None, STREAM)

    def _pre_activated(self, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(self.norm1(x))
        shortcut = self.projection(y) if self.projects else x
        y = self.conv1(y)
        y = self.conv2(jax.nn.relu(self.norm2(y)))
        return shortcut + self.conv3(jax.nn.relu(self.norm3(y)))

    def _post_activated(self, x: jax.Array) -> jax.Array:
        shortcut = self.projection_norm(self.projection(x)) if self.projects else x
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        return jax.nn.relu(shortcut + self.norm3(self.conv3(y)))
