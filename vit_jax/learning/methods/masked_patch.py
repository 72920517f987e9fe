"""Masked patch prediction, the paper's self-supervision (arXiv 2010.11929, 4.6 and B.1.2).

Half of the embedded patches are corrupted: of these 80 % become a learned mask embedding, 10 %
another patch of the image, 10 % stay as they are. For each of them the model predicts its mean
colour in 3 bits a channel, one of 512, from the token at its place.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import BATCH, CLASSES, TOKENS, WIDTH, constrain
from vit_jax.core.errors import UserError
from vit_jax.core.schema.fields import ABOVE_0, field
from vit_jax.learning.method import LossOutput, Method, Sizes, StepContext, StepInputs
from vit_jax.learning.methods import masking
from vit_jax.models.head import head
from vit_jax.models.layers.linear import param

TO_MASK, TO_OTHER = 0.8, 0.1  # of the corrupted patches; the rest is kept (B.1.2)
SIDE = 4  # of the grid of colours that the target "colours_4x4" has


class Extra(nnx.Module):
    """The mask embedding, [D], and a head over colours or pixels."""

    def __init__(self, model: Any, outputs: int, rngs: nnx.Rngs):
        spec = model.spec
        self.mask = param(initializers.normal(0.02), (spec.width,), (WIDTH,), rngs.params())
        init = initializers.normal(0.02)
        self.head = head(spec, spec.width, outputs, kernel_init=init, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class MaskedPatch(Method):
    """The fields of config.method."""

    kind: str = field("masked_patch")
    masked: float = field(
        0.5, "share of an image's patches that are corrupted", bounds=(ABOVE_0, 1)
    )
    target: str = field(
        "mean_colour",
        "of a patch: its `mean_colour`, one of 512; `colours_4x4`, the same of each of its "
        "4 x 4 parts; or its `pixels`, by their squared distance",
        choices=("mean_colour", "colours_4x4", "pixels"),
    )

    def check_name(self, name: str) -> None:
        masking.check_kind(self.kind, name, masking.VIT)

    def check(self, name: str, spec: Any, sizes: Sizes) -> None:
        masking.check_pooling(self.kind, spec)
        masking.num_masked(self.masked, spec.token_layout(sizes.image).num_patches, "method.masked")
        if self.target == "colours_4x4" and spec.patch_size % SIDE:
            raise UserError(
                f"method.target=colours_4x4 does not divide patches of {spec.patch_size}."
            )

    def extend(self, model: Any, rngs: nnx.Rngs) -> nnx.Module:
        each = {"mean_colour": 1, "colours_4x4": SIDE * SIDE}
        pixels = model.spec.channels * model.spec.patch_size**2
        return Extra(model, masking.COLOURS * each.get(self.target, 0) or pixels, rngs)

    def loss(
        self, model: Any, inputs: StepInputs, key: jax.Array, context: StepContext
    ) -> LossOutput:
        """The mean loss over each image's corrupted patches, and how many colours are right."""
        order_key, kind_key, other_key, dropout = jax.random.split(key, 4)
        patches = model.patches(inputs.images)
        b, n, _ = patches.shape
        masked = masking.num_masked(self.masked, n, "method.masked")
        is_corrupted = masking.inverse(masking.random_order(order_key, b, n)) >= n - masked
        kind = jax.random.uniform(kind_key, (b, n))
        # Another one: the distance to it, around the end, is not 0.
        step = jax.random.randint(other_key, (b, n), 1, n)
        other = jnp.take_along_axis(patches, ((jnp.arange(n) + step) % n)[..., None], axis=1)
        corrupted = jnp.where((kind < TO_MASK + TO_OTHER)[..., None], other, patches)
        mask = model.method.mask[...].astype(patches.dtype)
        corrupted = jnp.where((kind < TO_MASK)[..., None], mask, corrupted)
        seen = jnp.where(is_corrupted[..., None], corrupted, patches)
        tokens = model.encode(
            model.add_prefix_and_positions(constrain(seen, BATCH, TOKENS, None)), dropout
        )
        predicted = model.method.head(tokens[:, -n:].astype(jnp.float32))
        predicted = constrain(predicted, BATCH, TOKENS, CLASSES)
        losses, right = self._losses(predicted, inputs, model.spec.patch_size)
        metrics = {} if right is None else {"accuracy": jnp.sum(right * is_corrupted, 1) / masked}
        return LossOutput(jnp.sum(losses * is_corrupted, axis=1) / masked, metrics)

    def _losses(
        self, predicted: jax.Array, inputs: StepInputs, patch_size: int
    ) -> tuple[jax.Array, jax.Array | None]:
        """Losses of the patches, [B, N], and the shares of their colours that are right."""
        if self.target == "pixels":
            wanted = masking.cut(inputs.images, patch_size)
            wanted = wanted.reshape(predicted.shape)
            return jnp.mean(jnp.square(predicted - wanted), axis=-1), None
        patches = masking.cut(inputs.batch["image"], patch_size)
        side = SIDE if self.target == "colours_4x4" else 1
        colours = masking.mean_colours(masking.cut_again(patches, side))
        logits = predicted.reshape(*colours.shape, masking.COLOURS)
        log_p = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_p, colours[..., None], axis=-1)[..., 0]
        right = jnp.argmax(logits, axis=-1) == colours
        return losses.mean(axis=-1), right.astype(jnp.float32).mean(axis=-1)
