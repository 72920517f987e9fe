"""BiT: pre-activation ResNets with group norm and standardised weights (arXiv 1912.11370)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CLASSES, STREAM, TOKENS, WIDTH, constrain
from vit_jax.models.bit_spec import BiTSpec
from vit_jax.models.family import Preprocess, check_layers
from vit_jax.models.head import head
from vit_jax.nn.resnet import ResNet, group_norm


class BiT(nnx.Module):
    """A BiT: root, stages, a norm and a relu, the mean over all positions, a head.

    Args:
      spec: the architecture.
      num_classes: C, for the head; 0: no head, the model returns features.
      image_size: (height, width) in pixels; any.
      preprocess: how its images must be prepared.
      rngs: nnx.Rngs with a stream for "params".
    """

    def __init__(
        self,
        spec: BiTSpec,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        preprocess: Preprocess,
        rngs: nnx.Rngs,
    ):
        self.spec, self.num_classes, self.preprocess = spec, num_classes, preprocess
        self.resnet = self._make_resnet(image_size, rngs)
        if spec.pre_activation:
            self.norm = group_norm(spec.map_channels, WIDTH, spec, rngs)
        if num_classes:
            init = initializers.zeros
            self.head = head(spec, spec.features, num_classes, kernel_init=init, rngs=rngs)

    def _make_resnet(self, image_size: tuple[int, int], rngs: nnx.Rngs) -> ResNet:
        """Images -> the feature map."""
        del image_size
        return ResNet(self.spec, rngs=rngs)

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Training draws no random numbers: `train` and `rngs` have no effect.
        """
        return self.classify(self.features(images))

    def classify(self, features: jax.Array) -> jax.Array:
        """[B, D] -> [B, C] float32; headless: the features."""
        features = features.astype(jnp.float32)
        if not self.num_classes:
            return features
        return constrain(self.head(features), BATCH, CLASSES)

    def features(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, D]: the head's input."""
        return self.pool(self.tokens(images))

    def pool(self, x: jax.Array) -> jax.Array:
        """[B, N, D] of `tokens`, or [B, h, w, D] of `feature_map` -> [B, D]: the mean."""
        over = tuple(range(1, x.ndim - 1))
        return jnp.mean(x, axis=over, dtype=jnp.float32).astype(x.dtype)

    def feature_map(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, h, w, D]: the last feature map, normed."""
        self.spec.check_images(images, self.preprocess.image_size)
        x = self.resnet(images)[0]
        return jax.nn.relu(self.norm(x)) if self.spec.pre_activation else x

    def tokens(self, images: jax.Array, layers: tuple[int, ...] | None = None) -> Any:
        """[B, H, W, 3] -> [B, N, D]: the positions of the last feature map, normed, row by row.

        With `layers`, a tuple of [B, N', D'] after each of these units (from 0), without a norm.
        """
        flat = lambda x: constrain(x.reshape(x.shape[0], -1, x.shape[-1]), BATCH, TOKENS, STREAM)
        if layers is not None:
            check_layers(layers, self.spec.depth)
            self.spec.check_images(images, self.preprocess.image_size)
            return tuple(map(flat, self.resnet(images, layers)[1]))
        return flat(self.feature_map(images))
