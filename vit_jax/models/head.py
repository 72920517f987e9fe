"""From features to classes: the part that all models end with."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CLASSES, WIDTH, constrain
from vit_jax.models.family import ModelSpec
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


def has_sigmoids(spec: Any) -> bool:
    """Tells whether each class has a probability of its own, so that they need not sum to 1."""
    return getattr(spec, "probabilities", "softmax") == "sigmoid"


def num_image_classes(model: Any) -> int:
    """Number of classes that images may have; 0 without a head, or with one for each place."""
    return 0 if getattr(model.spec, "dense", None) else model.num_classes


def probabilities(model: Any, logits: jax.Array) -> jax.Array:
    """[..., C] -> float32 [..., C]: how probable the classes are, by the model's field."""
    logits = logits.astype(jnp.float32)
    if has_sigmoids(model.spec):
        return jax.nn.sigmoid(logits)
    return jax.nn.softmax(logits)


class Classifier(nnx.Module):
    """A model that ends with `head`, unless num_classes is 0."""

    num_classes: int
    head: Any
    # One of the functions below, or that of a model with two heads.
    read_out: Callable[[Any, jax.Array, bool], jax.Array]

    def classify(self, features: jax.Array, train: bool = False) -> jax.Array:
        """[B, D] -> [B, C] float32; headless: the features."""
        features = checkpoint_name(features.astype(jnp.float32), "features")
        return checkpoint_name(self.read_out(self, features, train), "logits")

    def of_all_tokens(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> logits [B, C], by a pass that leaves no token out."""
        return self(images)

    def activations(self, images: jax.Array, names: Sequence[str]) -> dict[str, jax.Array]:
        """[B, H, W, 3] -> activations by name, such as `blocks/3/mlp` (models/activations.py)."""
        from vit_jax.models.activations import activations

        return activations(self, images, names)


def no_head(model: Classifier, features: jax.Array, train: bool) -> jax.Array:
    """[B, D] -> [B, D]: the features."""
    return features


def one_head(model: Classifier, features: jax.Array, train: bool) -> jax.Array:
    """[B, D] -> [B, C]: the logits."""
    return constrain(model.head(features), BATCH, CLASSES)
