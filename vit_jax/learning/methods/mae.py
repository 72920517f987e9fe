"""Masked autoencoders (MAE, arXiv 2111.06377).

Most patches of an image are left out; a small decoder gets the others' tokens, with a mask
embedding in place of those left out, and predicts the pixels of these.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, STREAM, TOKENS, WIDTH, constrain
from vit_jax.core.errors import UserError
from vit_jax.core.schema.constraints import Constraint
from vit_jax.core.schema.fields import ABOVE_0, COUNT, field
from vit_jax.learning.method import LossOutput, Method, Sizes, StepContext, StepInputs
from vit_jax.learning.methods import masking
from vit_jax.models.head import head
from vit_jax.models.layers.block import Block
from vit_jax.models.layers.linear import Linear, param
from vit_jax.models.layers.posemb import sincos
from vit_jax.models.layers.stack import Stack
from vit_jax.models.vit import ViTSpec

VARIANCE_EPSILON = 1e-6  # of a patch's pixels, as in the authors' code


class Decoder(nnx.Module):
    """Tokens of some patches -> pixels of all (section 3).

    Args:
      model: the encoder's fields; of `spec`, blocks are like its own, of the decoder's sizes.
    """

    def __init__(self, model: ViTSpec, spec: ViTSpec, rngs: nnx.Rngs):
        init, precision = spec.init, spec.precision
        self.embed = Linear(
            (model.width,),
            (spec.width,),
            (WIDTH,),
            (STREAM,),
            kernel_init=init.kernel,
            precision=precision,
            rngs=rngs,
        )
        self.mask = param(initializers.normal(0.02), (spec.width,), (WIDTH,), rngs.params())
        self.blocks = Stack(functools.partial(Block, spec), spec, depth=spec.depth, rngs=rngs)
        self.norm = spec.make_norm(rngs)
        pixels = model.channels * model.patch_size**2
        self.head = head(spec, spec.width, pixels, kernel_init=init.kernel, rngs=rngs)
        self.spec = spec

    def __call__(self, tokens: jax.Array, places: jax.Array, layout: Any) -> jax.Array:
        """Class token, if any, and visible patches [B, V, D] -> pixels [B, N, 3 P^2].

        places: [B, N], where each patch is among the visible ones, followed by the masked ones.
        """
        x = self.embed(tokens)
        first, n = int(layout.class_token), layout.num_patches
        b, seen, width = x.shape
        masked = jnp.broadcast_to(self.mask[...].astype(x.dtype), (b, first + n - seen, width))
        patches = jnp.concatenate([x[:, first:], masked], axis=1)
        patches = jnp.take_along_axis(patches, places[..., None], axis=1)
        x = jnp.concatenate([x[:, :first], patches], axis=1)
        x = x + jnp.asarray(sincos("sincos_2d", layout, width), x.dtype)
        x = self.blocks(constrain(x, BATCH, TOKENS, STREAM))
        return self.head(self.norm(x)[:, first:].astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class MAE(Method):
    """The fields of config.method."""

    kind: str = field("mae")
    masked: float = field(
        0.75, "share of an image's patches that are left out", bounds=(ABOVE_0, 1)
    )
    normalize_pixels: bool = field(
        True, "whether each patch's pixels are wanted with mean 0 and variance 1"
    )
    decoder_width: int = field(512, "of the decoder's tokens", bounds=COUNT)
    decoder_depth: int = field(8, "its number of blocks", bounds=COUNT)
    decoder_heads: int = field(16, "of its attention", bounds=COUNT)

    constraints = (
        Constraint(
            "method.decoder_width",
            lambda c: c.method.decoder_width % c.method.decoder_heads or c.method.decoder_width % 4,
            "has to divide by 4, and by method.decoder_heads={method.decoder_heads}.",
        ),
    )

    def check_name(self, name: str) -> None:
        masking.check_kind(self.kind, name, masking.VIT)

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        masking.check_pooling(self.kind, spec)
        masking.num_masked(self.masked, spec.token_layout(sizes.image).num_patches, "method.masked")
        if spec.position_place != "input":
            raise UserError(
                "method.kind=mae needs positions at the input, not "
                f"model.position_embedding={spec.position_embedding} at {spec.position_place}."
            )

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        """The decoder; its blocks are the model's without dropout and value residuals."""
        spec = dataclasses.replace(
            model.spec,
            width=self.decoder_width,
            depth=self.decoder_depth,
            num_heads=self.decoder_heads,
            mlp_dim=4 * self.decoder_width,
            dropout=0.0,
            value_residual=0.0,
        )
        return Decoder(model.spec, spec, rngs)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The mean squared distance of each image's masked pixels (section 3)."""
        order_key, dropout = jax.random.split(key)
        spec, images = model.spec, inputs.images
        layout = spec.token_layout(images.shape[1:3])._replace(registers=0)
        n, b = layout.num_patches, images.shape[0]
        masked = masking.num_masked(self.masked, n, "method.masked")
        order = masking.random_order(order_key, b, n)
        places = masking.inverse(order)
        tokens = encode_visible(model, images, order[:, : n - masked], dropout)
        predicted = model.method(tokens, places, layout)
        wanted = self.targets(masking.cut(images, spec.patch_size))
        patch_losses = jnp.mean(jnp.square(predicted - wanted), axis=-1)
        return LossOutput(jnp.sum(patch_losses * (places >= n - masked), axis=1) / masked, {})

    def targets(self, patches: jax.Array) -> jax.Array:
        """[B, N, P, P, 3] -> [B, N, 3 P^2]."""
        x = patches.reshape(*patches.shape[:2], -1)
        if not self.normalize_pixels:
            return x
        mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, ddof=1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + VARIANCE_EPSILON)


def encode_visible(model: Any, images: jax.Array, visible: jax.Array, key: Any) -> jax.Array:
    """The tokens of some patches after the last norm, with the class token before them.

    [B, H, W, 3], int32 [B, V], places of patches -> [B, V, D], or [B, 1 + V, D].
    """
    tokens = model.add_prefix_and_positions(model.patches(images))
    layout = model.spec.token_layout(images.shape[1:3])
    first = layout.num_tokens - layout.num_patches
    seen = jnp.take_along_axis(tokens[:, first:], visible[..., None], axis=1)
    x = jnp.concatenate([tokens[:, :first], seen], axis=1)
    x = model.encode(constrain(x, BATCH, TOKENS, STREAM), key)
    return jnp.concatenate([x[:, : layout.class_token], x[:, first:]], axis=1)
