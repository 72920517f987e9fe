"""A plain ViT in flax.linen with optax, as in most code bases: the blocks unrolled.

Computed differently from `own`: attention's softmax is in the dtype of the computation, so in
bfloat16 there (`own`: float32); all tokens go through the last block (`own`: the class token
alone, behind its keys and values); an update that is not finite is applied (`own`: skipped).
Alike: norms have float32 statistics, results in the dtype of the computation, and epsilon 1e-6;
no dropout.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks import contenders
from benchmarks.contenders import OPTIONS, Contender, Shape
from benchmarks.contenders.jax_common import (
    compiled,
    contender,
    images_and_labels,
    project_options,
)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        xavier = nn.initializers.xavier_uniform()
        y = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(
            num_heads=self.shape.num_heads, kernel_init=xavier, dtype=self.dtype
        )(y, y)
        y = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x)
        y = nn.Dense(self.shape.mlp_dim, kernel_init=xavier, dtype=self.dtype)(y)
        y = nn.Dense(self.shape.width, kernel_init=xavier, dtype=self.dtype)(nn.gelu(y))
        return x + y


class ViT(nn.Module):
    """Images [B, H, W, 3] -> logits [B, C]."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, C], with a class token and learned positions."""
        s = self.shape
        patch = (s.patch_px, s.patch_px)
        x = nn.Conv(s.width, patch, patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, s.width)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, s.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.tile(cls, (x.shape[0], 1, 1)), x], axis=1)
        positions = nn.initializers.normal(0.02)
        x = x + self.param("positions", positions, (1, *x.shape[1:])).astype(x.dtype)
        for _ in range(s.depth):
            x = Block(s, self.dtype)(x)
        x = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype)(x)[:, 0]
        return nn.Dense(s.classes, kernel_init=nn.initializers.zeros)(x.astype(jnp.float32))


def program(shape: Shape, dtype: str) -> tuple[Any, Any, ViT]:
    """update(params, opt_state, images, labels), shapes of the four, and the model.

    The shapes, jax.ShapeDtypeStructs, are those that `update` can be lowered for; images are
    float32, normalised.
    """
    model = ViT(shape, jnp.dtype(dtype))
    size = (shape.batch, shape.image_px, shape.image_px, 3)
    images = jax.ShapeDtypeStruct(size, jnp.float32)
    labels = jax.ShapeDtypeStruct((shape.batch,), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    tx = _optimizer(params)

    def update(params: Any, opt_state: Any, images: jax.Array, labels: jax.Array) -> Any:
        def mean_loss(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, jax.eval_shape(tx.init, params), images, labels), model


def _optimizer(params: Any) -> optax.GradientTransformation:
    """AdamW behind clipping, with the learning rate of all contenders; `params`: their shapes."""
    schedule = optax.warmup_cosine_decay_schedule(
        0, contenders.LEARNING_RATE, contenders.WARMUP_STEPS, contenders.TOTAL_STEPS
    )
    decayed = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
    return optax.chain(
        optax.clip_by_global_norm(contenders.CLIP_NORM),
        optax.adamw(schedule, weight_decay=contenders.WEIGHT_DECAY, mask=decayed),
    )


def make(shape: Shape, dtype: str, settings: Sequence[str] = ()) -> Contender:
    """Builds the contender; with OPTIONS for this project's compiler options."""
    uint8, labels = images_and_labels(shape)
    images = jnp.asarray(uint8, jnp.float32) / 127.5 - 1.0
    update, _, model = program(shape, dtype)
    params = jax.jit(model.init)(jax.random.key(0), images)["params"]
    state = (params, _optimizer(params).init(params))
    labels = jnp.asarray(labels)
    options = project_options(jax.devices()[0]) if OPTIONS in settings else None
    jitted = jax.jit(update, donate_argnums=(0, 1), compiler_options=options)
    lowered = jitted.lower(*state, images, labels)
    executable, compile_secs = compiled(lowered)

    def step() -> jax.Array:
        nonlocal state
        *state, loss = executable(*state, images, labels)
        return loss

    return contender(step, dtype, executable, compile_secs)
