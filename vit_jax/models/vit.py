"""The Vision Transformer (arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core import errors
from vit_jax.core.axes import BATCH, CLASSES, STREAM, TOKENS, WIDTH, constrain
from vit_jax.models import fields as checks
from vit_jax.models.family import Family
from vit_jax.models.preprocess import Preprocess
from vit_jax.nn.block import Block
from vit_jax.nn.dropout import Dropout
from vit_jax.nn.linear import EPSILON, LayerNorm, Linear, param
from vit_jax.nn.mlp import GELUS
from vit_jax.nn.patches import PatchEmbedding
from vit_jax.nn.pooling import AttentionPooling
from vit_jax.nn.posemb import (
    LearnedPositions,
    SinCos1dPositions,
    SinCos2dPositions,
    TokenLayout,
)  # fmt: skip
from vit_jax.nn.precision import Precision
from vit_jax.nn.stack import Stack

# Table 1 of the paper; Ti and S from arXiv 2012.12877 and 2106.10270, g and G from 2106.04560
# (table 2), So400m from 2305.13035.
SIZES: dict[str, dict[str, int]] = {
    "Ti": {"depth": 12, "width": 192, "mlp_dim": 768, "heads": 3},
    "S": {"depth": 12, "width": 384, "mlp_dim": 1536, "heads": 6},
    "B": {"depth": 12, "width": 768, "mlp_dim": 3072, "heads": 12},
    "L": {"depth": 24, "width": 1024, "mlp_dim": 4096, "heads": 16},
    "So400m": {"depth": 27, "width": 1152, "mlp_dim": 4304, "heads": 16},
    "H": {"depth": 32, "width": 1280, "mlp_dim": 5120, "heads": 16},
    "g": {"depth": 40, "width": 1408, "mlp_dim": 6144, "heads": 16},
    "G": {"depth": 48, "width": 1664, "mlp_dim": 8192, "heads": 16},
}
PUBLISHED = (
    "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32",
    "ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14",
)  # fmt: skip

_NAME = re.compile(r"ViT-([A-Za-z0-9]+)/(\d+)")

# What the weights were trained as. The other fields say how to train or compute them further.
ARCHITECTURE = (
    "width", "depth", "mlp_dim", "heads", "pool", "position_embedding", "layer_scale", "gelu",
    "norm_epsilon",
)  # fmt: skip

# Fields with a choice of words.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "pool": ("cls", "avg", "map"),
    "position_embedding": ("learned_1d", "sincos_1d", "sincos_2d"),
    "gelu": tuple(GELUS),
    "softmax_dtype": ("float32", "bfloat16"),
    **checks.OF_PRECISION,
}
# The width is cut into as many equal parts: sines and cosines, of one coordinate or of two.
POSITION_PARTS = {"learned_1d": 1, "sincos_1d": 2, "sincos_2d": 4}


@dataclasses.dataclass(frozen=True)
class ViTSpec:
    """The fields of a ViT; those without a default come from its name."""

    patch_size: int
    depth: int
    width: int
    mlp_dim: int
    heads: int
    pool: str = "cls"  # "cls": class token; "avg": mean over tokens; "map": attention pooling
    pre_logits: bool = False  # dense(width) + tanh before the head (section 3.1: pre-training)
    position_embedding: str = "learned_1d"
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    layer_scale: float = 0.0  # initial value of LayerScale; 0: none
    gelu: str = "tanh"
    norm_epsilon: float = EPSILON  # of layer norms
    head_bias: float = 0.0
    dtype: str = "float32"
    softmax_dtype: str = "float32"
    gradient_dtype: str | None = None  # of kernels' gradients over devices; None: as computed
    scan: bool = False
    remat: str = "none"

    @property
    def precision(self) -> Precision:
        """In what the blocks compute."""
        gradient = self.gradient_dtype and jnp.dtype(self.gradient_dtype)
        return Precision(jnp.dtype(self.dtype), jnp.dtype(self.softmax_dtype), gradient)


def named(name: str) -> dict[str, Any] | None:
    """The fields that "ViT-B/16" stands for; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if not match or match[1] not in SIZES or int(match[2]) == 0:
        return None
    return {"patch_size": int(match[2]), **SIZES[match[1]]}


def check(done: ViTSpec) -> None:
    """UserError if it cannot be built."""
    checks.check_at_least_1(done, ("patch_size", "depth", "width", "mlp_dim", "heads"))
    checks.check_choices(done, CHOICES)
    if done.width % done.heads:
        raise errors.UserError(
            f"model.width={done.width} does not divide into model.heads={done.heads} heads; "
            f"nearest width: {_nearest_multiple(done.width, done.heads)}."
        )
    parts = POSITION_PARTS[done.position_embedding]
    if done.width % parts:
        nearest = _nearest_multiple(done.width, math.lcm(parts, done.heads))
        raise errors.UserError(
            f"model.width={done.width} does not divide into the {parts} parts of "
            f"model.position_embedding={done.position_embedding}; nearest width: {nearest}."
        )
    if not 0 < done.norm_epsilon < 1:
        raise errors.UserError(
            f"model.norm_epsilon={done.norm_epsilon}: a small positive number, such as 1e-6."
        )
    if not 0 <= done.dropout < 1 or not 0 <= done.stochastic_depth < 1:
        raise errors.UserError(
            "model.dropout and model.stochastic_depth are rates in [0, 1), got "
            f"{done.dropout} and {done.stochastic_depth}."
        )


def _nearest_multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of


class ViT(nnx.Module):
    """Patches, class token, position embedding, a stack of blocks, a norm, a head.

    Args:
      spec: the architecture.
      num_classes: C, of the head; 0: no head.
      image_size: (height, width) in pixels; multiples of the patch size.
      preprocess: what its images must look like.
      rngs: nnx.Rngs with a stream for "params".
      patches: what makes [B, N, D] of images; None: a projection of their patches.
    """

    def __init__(
        self,
        spec: ViTSpec,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        preprocess: Preprocess,
        rngs: nnx.Rngs,
        patches: Callable[[jax.Array], jax.Array] | None = None,
    ):
        self.spec, self.num_classes, self.preprocess = spec, num_classes, preprocess
        precision, width = spec.precision, spec.width
        self.patches = patches or PatchEmbedding(
            spec.patch_size, width, precision=precision, rngs=rngs
        )
        if spec.pool == "cls":
            self.cls = param(initializers.zeros, (width,), (WIDTH,), rngs.params())
        self.positions = _positions(spec, image_size, rngs)
        self.dropout = Dropout(spec.dropout)

        def block(rngs: nnx.Rngs) -> Block:
            return Block(
                width=width,
                mlp_dim=spec.mlp_dim,
                heads=spec.heads,
                gelu=spec.gelu,
                dropout=spec.dropout,
                layer_scale=spec.layer_scale,
                norm_epsilon=spec.norm_epsilon,
                precision=precision,
                rngs=rngs,
            )

        self.blocks = Stack(
            block,
            depth=spec.depth,
            stochastic_depth=spec.stochastic_depth,
            scan=spec.scan,
            remat=spec.remat,
            converts=precision.compute != jnp.float32,
            rngs=rngs,
        )
        self.norm = LayerNorm(
            width, WIDTH, epsilon=spec.norm_epsilon, precision=precision, rngs=rngs
        )
        if spec.pool == "map":
            self.pooling = AttentionPooling(
                width,
                spec.mlp_dim,
                spec.heads,
                gelu=spec.gelu,
                norm_epsilon=spec.norm_epsilon,
                precision=precision,
                rngs=rngs,
            )
        if spec.pre_logits:
            init = initializers.xavier_uniform()
            self.pre_logits = Linear(
                (width,),
                (width,),
                (WIDTH,),
                (STREAM,),
                kernel_init=init,
                precision=precision,
                rngs=rngs,
            )
        if not num_classes:
            return
        # The head computes in float32 whatever the blocks do: its sums decide the loss.
        self.head = Linear(
            (width,),
            (num_classes,),
            (WIDTH,),
            (CLASSES,),
            kernel_init=initializers.zeros,
            bias_init=initializers.constant(spec.head_bias),
            precision=dataclasses.replace(precision, compute=jnp.float32),
            rngs=rngs,
        )

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Args:
          images: as `preprocess` says.
          train: with dropout and stochastic depth; then `rngs` is needed.
          rngs: an nnx.Rngs with a stream "dropout", or a key.
        """
        key = _dropout_key(rngs) if train else None
        features = self._features(images, key).astype(jnp.float32)
        if not self.num_classes:
            return features
        logits = self.head(features)
        return constrain(logits, BATCH, CLASSES)

    def features(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, D]: what the head sees."""
        return self._features(images, None)

    def tokens(self, images: jax.Array, layers: tuple[int, ...] | None = None) -> Any:
        """[B, H, W, 3] -> [B, N, D] after the last norm; class token first where there is one.

        With `layers` a tuple: of [B, N, D] after each of these blocks (from 0), without a norm.
        """
        if layers is None:
            return self._encode(images, None)
        x, key = self._embed(images, None)
        return self.blocks(x, key, layers)[1]

    def _embed(self, images: jax.Array, key: Any) -> tuple[jax.Array, Any]:
        """Eq. 1; returns the tokens and the key for the blocks."""
        x = self.patches(images)
        if self.spec.pool == "cls":
            cls = jnp.broadcast_to(self.cls[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
            x = jnp.concatenate([cls, x], axis=1)
        x = constrain(self.positions(x), BATCH, TOKENS, STREAM)
        first, rest = (None, None) if key is None else jax.random.split(key)
        return self.dropout(x, first), rest

    def _encode(self, images: jax.Array, key: Any) -> jax.Array:
        """Eq. 1-4 without the pooling."""
        x, key = self._embed(images, key)
        return self.norm(self.blocks(x, key)[0])

    def _features(self, images: jax.Array, key: Any) -> jax.Array:
        x = self._encode(images, key)
        if self.spec.pool == "cls":
            x = x[:, 0]
        elif self.spec.pool == "map":
            x = self.pooling(x)
        else:
            x = jnp.mean(x, axis=1, dtype=jnp.float32).astype(x.dtype)
        return jnp.tanh(self.pre_logits(x)) if self.spec.pre_logits else x


def _dropout_key(rngs: Any) -> jax.Array:
    if rngs is None:
        raise ValueError("train=True draws random numbers: pass rngs=nnx.Rngs(dropout=0) or a key.")
    return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs


def _positions(spec: ViTSpec, image_size: tuple[int, int], rngs: nnx.Rngs) -> nnx.Module:
    layout = token_layout(spec, image_size)
    if spec.position_embedding == "sincos_1d":
        return SinCos1dPositions()
    if spec.position_embedding == "sincos_2d":
        return SinCos2dPositions(layout)
    return LearnedPositions(layout.num_tokens, spec.width, rngs=rngs)


def token_layout(spec: ViTSpec, image_size: tuple[int, int]) -> TokenLayout:
    """Of images of this size in pixels. UserError if the patches do not tile them."""
    p = spec.patch_size
    if any(side % p or side < p for side in image_size):
        near = tuple(_nearest_multiple(side, p) for side in image_size)
        raise errors.UserError(
            f"Image size {image_size} does not divide into patches of {p} pixels; nearest: {near}. "
            "Change the size in input.preprocess or the patch in model.name."
        )
    return TokenLayout((image_size[0] // p, image_size[1] // p), class_token=spec.pool == "cls")


def stride(spec: ViTSpec) -> int:
    """Pixels from one token to the next."""
    return spec.patch_size


def forward_flops(spec: ViTSpec, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """FLOPs of the matrix products of one image's forward pass; a multiply-add counts 2."""
    rows, columns = token_layout(spec, image_size).grid
    patches = 2 * rows * columns * spec.patch_size**2 * 3 * spec.width
    behind = flops_behind_patches(spec, num_classes=num_classes, image_size=image_size)
    return patches + behind


def flops_behind_patches(spec: ViTSpec, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """As `forward_flops`, from the tokens on."""
    n, d = token_layout(spec, image_size).num_tokens, spec.width
    projections = n * 4 * d * d
    attention = 2 * n * n * d
    mlp = n * 2 * d * spec.mlp_dim
    # The probe's query is the same for every image, so it is not counted.
    one_query = n * 2 * d * d + 2 * n * d + d * d + 2 * d * spec.mlp_dim
    pooling = (spec.pool == "map") * one_query
    head = d * num_classes + spec.pre_logits * d * d
    return 2 * (spec.depth * (projections + attention + mlp) + pooling + head)


def activation_bytes(spec: ViTSpec, *, image_size: tuple[int, int]) -> int:
    """What the backward pass of the blocks finds in memory of one image in bfloat16, unpadded.

    Of each token a block's input, its middle, query, key, value, what attention mixed, the hidden
    layer before its GELU, and attention's weights.
    """
    n = token_layout(spec, image_size).num_tokens
    of_a_token = 6 * spec.width + spec.mlp_dim + spec.heads * n
    return 2 * spec.depth * n * of_a_token


def block_input_bytes(spec: ViTSpec, *, image_size: tuple[int, int]) -> int:
    """Of one image in bfloat16, what enters the blocks: the least that a backward pass keeps."""
    return 2 * spec.depth * token_layout(spec, image_size).num_tokens * spec.width


FAMILY = Family(
    kind="A ViT",
    form=f"ViT-<{'|'.join(SIZES)}>/<patch size in pixels>",
    published=PUBLISHED,
    architecture=ARCHITECTURE,
    spec=ViTSpec,
    named=named,
    check=check,
    create=ViT,
    token_layout=token_layout,
    stride=stride,
    forward_flops=forward_flops,
    activation_bytes=activation_bytes,
    block_input_bytes=block_input_bytes,
)
