"""The common part of convolutional networks: the mean over positions, and costs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, STREAM, TOKENS, constrain
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.family import ModelSpec, Preprocess, check_layers
from vit_jax.models.head import Classifier, head, no_head, one_head
from vit_jax.models.layers.linear import Initializer
from vit_jax.models.layers.stack import unit_input_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvNetSpec(ModelSpec):
    """The sizes and costs of a network of stages, beside the fields of its units.

    These declare `units` of each stage, `each_unit` with their shapes, `map_channels` and
    `map_stride` of the last feature map, `map_bytes` up to it. As they are not known here, `self`
    is Any.
    """

    @property
    def depth(self: Any) -> int:
        """Number of units."""
        return sum(self.units)

    @property
    def features(self: Any) -> int:
        """Width of the head's input."""
        return self.map_channels

    @property
    def stride(self: Any) -> int:
        """Pixels from one token to the next."""
        return self.map_stride

    def token_layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """Layout of the tokens for images of this size in pixels."""
        rows, columns = (-(-side // self.stride) for side in image_size)
        return TokenLayout((rows, columns), class_token=False)

    def activation_bytes(self: Any, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that are kept for the backward pass."""
        return self.map_bytes(image_size)

    def block_input_bytes(self: Any, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that enter the units: the least that is kept."""
        return unit_input_bytes(self.each_unit(image_size))


class ConvNet(Classifier):
    """A classifier of the mean over the positions of a feature map."""

    spec: Any

    def __init__(
        self,
        spec: Any,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        preprocess: Preprocess,
        rngs: nnx.Rngs,
    ):
        self.spec, self.num_classes, self.preprocess = spec, num_classes, preprocess
        self._make_body(image_size, rngs)
        self.read_out = one_head if num_classes else no_head
        if num_classes:
            init = self._head_init(num_classes)
            self.head = head(spec, spec.features, num_classes, kernel_init=init, rngs=rngs)

    def _make_body(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> None:
        """Adds the layers before the head."""
        raise NotImplementedError

    def _head_init(self, num_classes: int) -> Initializer:
        return initializers.zeros

    def feature_map(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, h, w, D]: the last feature map, behind its norm and activation."""
        raise NotImplementedError

    def unit_maps(self, images: jax.Array, layers: tuple[int, ...]) -> tuple[jax.Array, ...]:
        """[B, H, W, 3] -> [B, h', w', D'] after each of these units, without a norm."""
        raise NotImplementedError

    def features(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, D]: the head's input."""
        return self.pool(self.tokens(images))

    def pool(self, x: jax.Array) -> jax.Array:
        """[B, N, D] of `tokens`, or [B, h, w, D] of `feature_map` -> [B, D]: the mean."""
        over = tuple(range(1, x.ndim - 1))
        return jnp.mean(x, axis=over, dtype=jnp.float32).astype(x.dtype)

    def tokens(self, images: jax.Array, layers: tuple[int, ...] | None = None) -> Any:
        """[B, H, W, 3] -> [B, N, D]: the positions of the last feature map, row by row.

        With `layers`, a tuple of [B, N', D'] after each of these units (from 0), without a norm.
        """
        if layers is None:
            return _row_by_row(self.feature_map(images))
        check_layers(layers, self.spec.depth)
        return tuple(map(_row_by_row, self.unit_maps(images, layers)))


def _row_by_row(x: jax.Array) -> jax.Array:
    return constrain(x.reshape(x.shape[0], -1, x.shape[-1]), BATCH, TOKENS, STREAM)
