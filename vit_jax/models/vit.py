"""The Vision Transformer (arXiv 2010.11929, section 3.1) and its later variants."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core.axes import BATCH, CLASSES, STREAM, TOKENS, WIDTH, constrain, keep_order
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.family import Preprocess, check_layers
from vit_jax.models.head import head
from vit_jax.models.vit_spec import ViTSpec
from vit_jax.nn import posemb
from vit_jax.nn.block import Block
from vit_jax.nn.linear import Linear, param
from vit_jax.nn.norm import norm
from vit_jax.nn.patches import PatchEmbedding
from vit_jax.nn.pooling import AttentionPooling
from vit_jax.nn.posemb import Positions
from vit_jax.nn.regularization import Dropout, dropout_key
from vit_jax.nn.stack import Stack


class ViT(nnx.Module):
    """A ViT: patches, class token, position embedding, a stack of blocks, a norm, a head.

    Args:
      spec: the architecture.
      num_classes: C, for the head; 0: no head.
      image_size: (height, width) in pixels; multiples of the patch size, or crop_to_patches.
      preprocess: how its images must be prepared.
      rngs: nnx.Rngs with a stream for "params".
    """

    def __init__(
        self,
        spec: ViTSpec,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        preprocess: Preprocess,
        rngs: nnx.Rngs,
    ):
        self.spec, self.num_classes, self.preprocess = spec, num_classes, preprocess
        precision, width, start = spec.precision, spec.width, spec.start
        self.patches = self._make_patches(rngs)
        if spec.has_class_token:
            self.cls = param(start.class_token, (width,), (WIDTH,), rngs.params())
        if spec.distillation_token:
            # Not zeros, as a class token may be: without positions they would stay equal.
            make = lambda: param(start.positions, (width,), (WIDTH,), rngs.params())
            self.distillation_token = make()
            if spec.distillation_position:
                self.distillation_position = make()
        if spec.registers:
            # Unlike a class token they have no positions: zeros would stay equal to each other.
            shape, axes = (spec.registers, width), (TOKENS, WIDTH)
            self.registers = param(start.positions, shape, axes, rngs.params())
        layout, of_blocks = spec.token_layout(image_size), spec.position_place == "layers"
        self.positions = Positions() if of_blocks else positions(spec, layout, rngs)
        self.dropout = Dropout(spec.dropout)

        own = (lambda rngs: positions(spec, layout, rngs)) if of_blocks else None
        self.blocks = Stack(
            functools.partial(self._make_block, layout, positions=own, scanned=spec.scan),
            spec,
            depth=spec.depth,
            stochastic_depth=spec.stochastic_depth,
            constant_depth=spec.stochastic_depth_constant,
            rngs=rngs,
        )
        self.norm = norm(
            spec.norm, width, WIDTH, epsilon=spec.norm_epsilon, precision=precision, rngs=rngs
        )
        if spec.pool == "map":
            self.pooling = AttentionPooling(spec, rngs=rngs)
        if spec.pre_logits:
            self.pre_logits = Linear(
                (width,),
                (width,),
                (WIDTH,),
                (STREAM,),
                kernel_init=start.pre_logits,
                precision=precision,
                rngs=rngs,
            )
        if num_classes:
            inputs = spec.width if spec.distillation_token else spec.features
            of_classes = lambda: head(spec, inputs, num_classes, kernel_init=start.head, rngs=rngs)
            self.head = of_classes()
            if spec.distillation_token:
                self.distillation_head = of_classes()

    def _make_patches(self, rngs: nnx.Rngs) -> nnx.Module:
        """Images -> [B, N, D]."""
        spec = self.spec
        return PatchEmbedding(
            spec.patch_size,
            spec.width,
            crop=spec.crop_to_patches,
            start=spec.start,
            precision=spec.precision,
            rngs=rngs,
        )

    def _make_block(self, layout: TokenLayout, **arguments: Any) -> nnx.Module:
        """A block for tokens of this layout."""
        del layout
        return Block(self.spec, **arguments)

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Args:
          images: prepared by `preprocess`.
          train: with dropout and stochastic depth; then `rngs` is needed.
          rngs: an nnx.Rngs with a stream "dropout", or a key.
        """
        key = dropout_key(rngs) if train else None
        return self.classify(self._features(images, key))

    def classify(self, features: jax.Array) -> jax.Array:
        """[B, D] -> [B, C] float32; headless: the features."""
        features = features.astype(jnp.float32)
        if not self.num_classes:
            return features
        if self.spec.distillation_token:
            of_class, of_distillation = self._classify_each(features)
            return (of_class + of_distillation) / 2
        logits = self.head(features)
        return constrain(logits, BATCH, CLASSES)

    def logits_of_each(self, images: jax.Array, rngs: Any) -> tuple[jax.Array, jax.Array]:
        """In training, the logits of the class token and those of the distillation token.

        [B, H, W, 3] -> [B, C], [B, C] float32.
        """
        features = self._features(images, dropout_key(rngs))
        return self._classify_each(features.astype(jnp.float32))

    def _classify_each(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_class, of_distillation = jnp.split(features, 2, axis=-1)
        logits = self.head(of_class), self.distillation_head(of_distillation)
        return constrain(logits[0], BATCH, CLASSES), constrain(logits[1], BATCH, CLASSES)

    def features(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, D]: the head's input; of two heads, theirs side by side."""
        return self._features(images, None)

    def tokens(self, images: jax.Array, layers: tuple[int, ...] | None = None) -> Any:
        """[B, H, W, 3] -> [B, N, D] after the last norm: class token, registers, patches.

        With `layers`, a tuple of [B, N, D] after each of these blocks (from 0), without a norm.
        """
        if layers is None:
            return self._encode(images, None)
        check_layers(layers, self.spec.depth)
        return self._run(images, None, layers)[1]

    def embed(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]: the tokens of eq. 1, which enter the first block."""
        self.spec.check_images(images, self.preprocess.image_size)
        return self.place(self.patches(images))

    def place(self, patches: jax.Array, layout: TokenLayout | None = None) -> jax.Array:
        """Embedded patches [B, N, D] -> [B, N, D]: the tokens of eq. 1.

        layout: of images of another size than the model's; positions are then interpolated.
        """
        x = patches.astype(self.spec.stream_dtype)
        first = [self.cls[...].astype(x.dtype)] if self.spec.has_class_token else []
        if self.spec.distillation_token:
            token = self.distillation_token[...]
            if self.spec.distillation_position:
                token = token + self.distillation_position[...]
            first.append(token.astype(x.dtype))
        first += [self.registers[...].astype(x.dtype)] if self.spec.registers else []
        of_all = [
            jnp.broadcast_to(t, (x.shape[0], t.size // x.shape[2], x.shape[2])) for t in first
        ]
        x = jnp.concatenate([*of_all, x], axis=1) if first else x
        if self.spec.position_place == "input":
            x = self._positions_on(layout, self.positions)(x)
        stream = (BATCH, TOKENS, STREAM)
        return keep_order(constrain(x, *stream), *stream)

    def _run(
        self,
        images: jax.Array,
        key: Any,
        layers: tuple[int, ...] = (),
        results: int | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Eq. 1-3: the tokens after the last block, and after the blocks `layers`.

        results: how many tokens, from the first on, are wanted after the last block.
        """
        return self._run_blocks(self.embed(images), key, layers, results)

    def _run_blocks(
        self,
        x: jax.Array,
        key: Any,
        layers: tuple[int, ...] = (),
        results: int | None = None,
        layout: TokenLayout | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Eq. 2-3 of the tokens of eq. 1; as `_run`."""
        first, rest = (None, None) if key is None else jax.random.split(key)
        x = self.dropout(x, first)
        shared = self.shared_positions and self._positions_on(layout, self.shared_positions)
        return self.blocks(x, rest, layers, shared, results)

    def _positions_on(self, layout: TokenLayout | None, positions: Positions) -> Positions:
        return positions if layout is None else positions.on(layout, self.spec.width)

    def encode(self, x: jax.Array, key: Any = None, layout: TokenLayout | None = None) -> jax.Array:
        """Tokens of eq. 1, [B, N, D], or some of them -> the same after the last norm.

        key: for dropout and stochastic depth; None: without. layout: as in `place`.
        """
        return self.norm(self._run_blocks(x, key, layout=layout)[0])

    @property
    def shared_positions(self) -> Positions | None:
        """The position embedding that acts in every block, if one does."""
        return self.positions if self.spec.position_place == "shared" else None

    def _encode(self, images: jax.Array, key: Any, results: int | None = None) -> jax.Array:
        """Eq. 1-4 without the pooling."""
        return self.norm(self._run(images, key, results=results)[0])

    def _features(self, images: jax.Array, key: Any) -> jax.Array:
        # Of the last block the head sees the class token alone: the others' would be thrown away.
        first = 1 + self.spec.distillation_token
        x = self._encode(images, key, results=first if self.spec.pool == "cls" else None)
        return self.pool(x)

    def pool(self, x: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        """[B, N, D] after the last norm -> [B, D], the head's input.

        offset: with attention pooling, added to its weights (AttentionPooling).
        """
        if self.spec.distillation_token:
            x = jnp.concatenate([x[:, 0], x[:, 1]], axis=-1)
        elif self.spec.pool == "cls":
            x = x[:, 0]
        elif self.spec.pool == "map":
            x = self.pooling(x[:, self.spec.registers :], offset)
        else:
            first = self.spec.registers + self.spec.has_class_token
            mean = jnp.mean(x[:, first:], axis=1, dtype=jnp.float32).astype(x.dtype)
            x = mean if self.spec.pool == "avg" else jnp.concatenate([x[:, 0], mean], axis=1)
        return jnp.tanh(self.pre_logits(x)) if self.spec.pre_logits else x


def positions(spec: ViTSpec, layout: TokenLayout, rngs: nnx.Rngs) -> Positions:
    """A position embedding, for all blocks or for one."""
    made: dict[str, Any] = {"init": spec.start.positions, "rngs": rngs}
    make: dict[str, Callable[[], Positions]] = {
        "none": Positions,
        "learned_1d": lambda: posemb.LearnedPositions(layout, spec.width, **made),
        "learned_2d": lambda: posemb.Learned2dPositions(layout, spec.width, **made),
        "relative": lambda: posemb.RelativePositions(layout, spec.width // spec.num_heads, **made),
        "sincos_1d": lambda: posemb.SinCosPositions(layout, "sincos_1d"),
        "sincos_2d": lambda: posemb.SinCosPositions(layout, "sincos_2d"),
        "rotary_2d": lambda: posemb.Rotary2dPositions(layout),
    }
    return make[spec.position_embedding]()
