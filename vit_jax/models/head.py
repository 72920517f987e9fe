"""From features to classes: the part that all models end with."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CLASSES, STREAM, TOKENS, WIDTH, constrain
from vit_jax.models.family import ModelSpec, Preprocess, check_layers
from vit_jax.models.layers.linear import Initializer, Linear


def head(
    spec: ModelSpec, features: int, num_classes: int, *, kernel_init: Initializer, rngs: nnx.Rngs
) -> Linear:
    """[B, features] -> [B, C], always computed in float32: its sums decide the loss."""
    return Linear(
        (features,),
        (num_classes,),
        (WIDTH,),
        (CLASSES,),
        kernel_init=kernel_init,
        bias_init=initializers.constant(spec.head_bias),
        precision=dataclasses.replace(spec.precision, compute=jnp.float32),
        rngs=rngs,
    )


def probabilities(model: Any, logits: jax.Array) -> jax.Array:
    """[..., C] -> float32 [..., C]: how probable the classes are, by the model's field."""
    logits = logits.astype(jnp.float32)
    if getattr(model.spec, "probabilities", "softmax") == "sigmoid":
        return jax.nn.sigmoid(logits)
    return jax.nn.softmax(logits)


class Classifier(nnx.Module):
    """A model that ends with `head`, unless num_classes is 0."""

    num_classes: int
    head: Linear

    def classify(self, features: jax.Array) -> jax.Array:
        """[B, D] -> [B, C] float32; headless: the features."""
        features = features.astype(jnp.float32)
        if not self.num_classes:
            return features
        return constrain(self.head(features), BATCH, CLASSES)


class ConvNet(Classifier):
    """A classifier of the mean over the positions of a feature map; any image size."""

    spec: Any
    preprocess: Preprocess

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
        flat = lambda x: constrain(x.reshape(x.shape[0], -1, x.shape[-1]), BATCH, TOKENS, STREAM)
        if layers is None:
            return flat(self.feature_map(images))
        check_layers(layers, self.spec.depth)
        return tuple(map(flat, self.unit_maps(images, layers)))
