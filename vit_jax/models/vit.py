"""The Vision Transformer (arXiv 2010.11929, section 3.1) and its later variants.

First the model, from images to logits; its block is in layers/block.py. Then its fields, their
valid combinations and costs, and the names that imply them.
"""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.core import errors
from vit_jax.core.axes import BATCH, CLASSES, STREAM, TOKENS, WIDTH, constrain
from vit_jax.core.schema import entry_points
from vit_jax.core.schema.constraints import Constraint, unread_rules
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.core.token_layout import ROTARY_PARTS, TokenLayout
from vit_jax.models.family import Family, ModelSpec, Preprocess, check_layers, multiple, rule
from vit_jax.models.head import Classifier, head, no_head, one_head
from vit_jax.models.layers import faster
from vit_jax.models.layers.block import (
    Block,
    BlockSpec,
    PositionedBlock,
    SharingBlock,
    identity,
)  # fmt: skip
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.linear import FLOAT32, Initializer, Linear, param
from vit_jax.models.layers.logits import BIAS
from vit_jax.models.layers.posemb import LearnedPositions, Positions
from vit_jax.models.layers.regularization import Dropout, dropout_key, split_key
from vit_jax.models.layers.stack import Layers, Stack, call_block
from vit_jax.models.layers.tokens import (
    AttentionPooling,
    FirstTokens,
    PatchEmbedding,
    Patches,
    PatchMean,
)


class ViT(Classifier):
    """A ViT: patches, class token, position embedding, a stack of blocks, a norm, a head.

    B images, N tokens of width D, C classes.

    Attributes:
      prefix: names of the parameters whose sums are the learned tokens.
      read_out: a function of the model, chosen by its spec, that applies the heads.
    """

    def __init__(
        self,
        spec: "ViTSpec",
        *,
        num_classes: int,
        image_size: tuple[int, int],
        preprocess: Preprocess,
        rngs: nnx.Rngs,
    ):
        """Draws the parameters.

        Args:
          spec: the architecture.
          num_classes: C, for the head; 0: no head.
          image_size: (height, width) in pixels; multiples of the patch size, or crop_to_patches.
          preprocess: how its images must be prepared.
          rngs: nnx.Rngs with a stream for "params".
        """
        self.spec, self.num_classes, self.preprocess = spec, num_classes, preprocess
        width, init = spec.width, spec.init
        layout, place = spec.token_layout(image_size), spec.position_place
        new_positions = functools.partial(make_positions, spec, layout)
        make_block: Callable[..., Block] = Block
        if place == "layers":
            make_block = functools.partial(PositionedBlock, positions=new_positions)
        elif place == "shared":
            make_block = SHARING_BLOCKS.get(spec.position_embedding, SharingBlock)

        def vector(initializer: Initializer) -> nnx.Param:
            return param(initializer, (width,), (WIDTH,), rngs.params())

        make_norm = functools.partial(spec.make_norm, rngs)
        self.patches = self._make_patches(rngs)
        prefix: list[tuple[str, ...]] = []
        if spec.has_class_token:
            self.cls = vector(init.class_token)
            prefix.append(("cls",))
        if spec.distillation_token:
            self.distillation_token = vector(init.positions)
            prefix.append(("distillation_token",))
        if spec.distillation_position:
            self.distillation_position = vector(init.positions)
            prefix[-1] = ("distillation_token", "distillation_position")
        if spec.registers:  # random: equal ones, without positions, would stay equal
            shape, axes = (spec.registers, width), (TOKENS, WIDTH)
            self.registers = param(init.positions, shape, axes, rngs.params())
            prefix.append(("registers",))
        self.prefix = tuple(prefix)
        self._make_positions(layout, rngs)
        self.pre_norm = make_norm() if spec.pre_norm else identity
        self.dropout = Dropout(spec.dropout)
        self.blocks = Stack(
            functools.partial(self._make_block, make_block, layout),
            spec,
            depth=spec.depth,
            stochastic_depth=spec.stochastic_depth,
            constant_depth=spec.stochastic_depth_constant,
            rngs=rngs,
        )
        self.share_values = _share_first_values if spec.value_residual else _share_nothing
        self.norm = make_norm() if spec.final_norm == "tokens" else identity
        self.feature_norm = make_norm() if spec.final_norm == "features" else identity
        self.pooling = make_pooling(spec, rngs)
        self.pre_logits = make_pre_logits(spec, rngs) if spec.pre_logits else identity
        self.projection = make_projection(spec, rngs) if spec.projection else identity
        self.to_unit_length = unit_length if spec.unit_features else identity
        inputs = width if spec.distillation_token else spec.features
        make_head = functools.partial(
            head, spec, inputs, num_classes, kernel_init=init.head, rngs=rngs
        )
        self.read_out = no_head
        if num_classes and not spec.dense:
            self.head, self.read_out = make_head(), one_head
        if num_classes and spec.distillation_token:
            self.distillation_head, self.read_out = make_head(), _mean_of_heads
        if num_classes and spec.dense:
            make_dense, self.read_out = DENSE_HEADS[spec.dense], _dense_head
            self.head = make_dense(spec, num_classes, layout.grid, init.head, rngs)

    def __call__(self, images: jax.Array, train: bool = False, rngs: Any = None) -> jax.Array:
        """[B, H, W, 3] float32, normalised -> logits [B, C] float32; headless: features [B, D].

        Args:
          images: prepared by `preprocess`.
          train: with dropout and stochastic depth; then `rngs` is needed.
          rngs: an nnx.Rngs with a stream "dropout", or a key.
        """
        key = dropout_key(rngs) if train else None
        return self.classify(self._features(images, key), train)

    def _features(self, images: jax.Array, key: Any) -> jax.Array:
        x = self.embed(images)  # Eq. 1
        x = self._run_blocks(self.blocks, x, key, self.pooling.call_last)  # Eq. 2-3
        return self.pool(self.norm(self.pooling.seen(x)))  # Eq. 4

    def embed(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, N, D]: the tokens of eq. 1, which enter the first block."""
        self.spec.check_images(images, self.preprocess.image_size)
        patches = checkpoint_name(self.patches(images), "patches")
        return checkpoint_name(self.add_prefix_and_positions(patches), "embed")

    def encode(self, x: jax.Array, key: Any = None) -> jax.Array:
        """Tokens of eq. 1, [B, N, D], or some of them -> the same after the last norm.

        key: for dropout and stochastic depth; None: without.
        """
        return checkpoint_name(self.norm(self._run_blocks(self.blocks, x, key)), "norm")

    def of_all_tokens(self, images: jax.Array) -> jax.Array:
        return self.classify(self.pool(self.encode(self.embed(images))))

    def pool(self, x: jax.Array) -> jax.Array:
        """[B, N, D] after the tokens' last norm -> [B, D], the head's input."""
        features = self.pre_logits(self.feature_norm(self.pooling(x)))
        return self.to_unit_length(self.projection(features))

    # --- the steps of embed and encode

    def add_prefix_and_positions(self, patches: jax.Array) -> jax.Array:
        """Embedded patches [B, N', D] -> [B, N, D]: the tokens of eq. 1, the learned ones first."""
        x = patches.astype(self.spec.stream_dtype)
        batch = x.shape[0]  # not len(x): exports leave it open
        sums = (
            functools.reduce(operator.add, (getattr(self, n)[...] for n in p)) for p in self.prefix
        )
        rows = (jnp.atleast_2d(tokens).astype(x.dtype) for tokens in sums)
        prefix = [jnp.broadcast_to(t, (batch, *t.shape)) for t in rows]
        x = getattr(self, self.input_positions)(jnp.concatenate([*prefix, x], axis=1))
        x = self.pre_norm(x).astype(x.dtype)
        return faster.replacing("stream", constrain)(x, BATCH, TOKENS, STREAM)

    def _run_blocks(
        self, run: Callable[..., Any], x: jax.Array, key: Any, call_last: Any = call_block
    ) -> Any:
        """Eq. 2-3. run: the stack or its `outputs`; call_last: calls its last block."""
        input_key, blocks_key = split_key(key, 2)
        x = self.dropout(x, input_key)
        complete = self.completing(x)
        return run(
            x,
            blocks_key,
            lambda block, *inputs: complete(block)(*inputs),
            lambda block, *inputs: call_last(complete(block), *inputs),
        )

    def completing(self, x: jax.Array) -> Callable[[Any], Any]:
        """Tokens that enter the first block -> what gives a block of the stack all that it shares.

        That is the position embedding of the model, if there is one, and the first block's values.
        """
        share = self.share_values(self, x)
        return lambda block: share(self.with_positions(block))

    def with_positions(self, block: Any) -> Any:
        """A block taken from the stack, with the position embedding that all share, if they do."""
        for sharing in block.sharing_blocks:
            sharing.positions = getattr(self, self.shared_positions)
        return block

    def resized(self, layout: TokenLayout) -> "ViT":
        """The same model for images of another size: positions are interpolated (Positions.on)."""
        resized = nnx.merge(*nnx.split(self))
        resized.positions = self.positions.on(layout)
        resized.rotary = self.rotary.on(layout)
        return resized

    # --- other outputs than logits, and two heads

    def features(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] -> [B, D]: the head's input; of two heads, theirs side by side.

        Of a dense head, which sees patches, their mean.
        """
        return self.pooling.of_image(self._features(images, None))

    def tokens(self, images: jax.Array, layers: tuple[int, ...] | None = None) -> Any:
        """[B, H, W, 3] -> [B, N, D] after the last norm: class token, registers, patches.

        With `layers`, a tuple of [B, N, D] after each of these blocks (from 0), without a norm.
        """
        if layers is None:
            return self.encode(self.embed(images))
        check_layers(layers, self.spec.depth)
        outputs = self._run_blocks(self.blocks.outputs, self.embed(images), None)
        return tuple(outputs[i] for i in layers)

    def logits_of_each(self, images: jax.Array, rngs: Any) -> tuple[jax.Array, jax.Array]:
        """In training, the logits of the class token and those of the distillation token.

        [B, H, W, 3] -> [B, C], [B, C] float32.
        """
        return _logits_of_heads(self, self._features(images, dropout_key(rngs)))

    def _make_positions(self, layout: TokenLayout, rngs: nnx.Rngs) -> None:
        """The position embedding of the whole model, or both that it has."""
        spec, place = self.spec, self.spec.position_place
        self.positions = Positions() if place == "layers" else make_positions(spec, layout, rngs)
        self.rotary = Positions()
        # Names of those that act on tokens at the input, and of those that blocks share.
        self.input_positions = "rotary" if place == "shared" else "positions"
        self.shared_positions = "positions"
        if spec.absolute_positions:
            self.rotary, self.positions = self.positions, LearnedPositions(spec, layout, rngs)
            self.input_positions, self.shared_positions = "positions", "rotary"

    def _make_patches(self, rngs: nnx.Rngs) -> nnx.Module:
        """The layer from images to embedded patches, [B, N', D]; hybrids have another one."""
        return PatchEmbedding(self.spec, self.spec.patch_size, self.spec.channels, rngs)

    def _make_block(
        self, make_block: Callable[..., Block], layout: TokenLayout, rngs: nnx.Rngs
    ) -> nnx.Module:
        """A block for tokens of this layout, which axial ones (axial.py) need to know."""
        return make_block(self.spec, rngs=rngs)


# --- what a model computes of the parts that it has, chosen as it is made


def _share_nothing(model: ViT, x: jax.Array) -> Callable[[Any], Any]:
    del model, x
    return identity


def _first_layer(param: Any) -> jax.Array:
    return param.each[0] if isinstance(param, Layers) else param[0]


def _share_first_values(model: ViT, x: jax.Array) -> Callable[[Any], Any]:
    """The first block's values, for all: computed a second time where it is in a scan or remat."""
    graph, params = nnx.split(model.blocks.block)
    block = model.with_positions(nnx.merge(graph, jax.tree.map(_first_layer, params)))
    first = block.values(x)

    def share(block: Any) -> Any:
        block.attention.value_residual.first = first
        return block

    return share


def _logits_of_heads(model: ViT, features: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Features of class and distillation token, [B, 2 D] -> the logits of both heads, [B, C]."""
    class_token, distillation_token = jnp.split(features.astype(jnp.float32), 2, axis=-1)
    logits = model.head(class_token), model.distillation_head(distillation_token)
    return constrain(logits[0], BATCH, CLASSES), constrain(logits[1], BATCH, CLASSES)


def _mean_of_heads(model: ViT, features: jax.Array, train: bool) -> jax.Array:
    """[B, 2 D] -> [B, C]."""
    class_logits, distillation_logits = _logits_of_heads(model, features)
    return (class_logits + distillation_logits) / 2


def _dense_head(model: ViT, features: jax.Array, train: bool) -> jax.Array:
    """[B, N, D] of patches -> [B, h, w, C]."""
    return constrain(model.head(features, train), BATCH, None, None, None)


class PreLogits(Linear):
    """A dense layer and tanh before the head."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(super().__call__(x))


def make_pre_logits(spec: "ViTSpec", rngs: nnx.Rngs) -> PreLogits:
    """[B, D] -> [B, D]."""
    return PreLogits(
        (spec.width,), (spec.width,), (WIDTH,), (STREAM,),
        kernel_init=spec.init.pre_logits, precision=spec.precision, rngs=rngs,
    )  # fmt: skip


def make_projection(spec: "ViTSpec", rngs: nnx.Rngs) -> Linear:
    """[B, D] -> [B, projection], in float32 as the head."""
    return Linear(
        (spec.width,), (spec.projection,), (WIDTH,), (STREAM,), bias=False,
        kernel_init=spec.init.pre_logits, precision=FLOAT32, rngs=rngs,
    )  # fmt: skip


def unit_length(x: jax.Array) -> jax.Array:
    """[B, D] -> float32 [B, D]: vectors of length 1."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-12)


def make_positions(spec: "ViTSpec", layout: TokenLayout, rngs: nnx.Rngs) -> Positions:
    """A position embedding, for all blocks or for one."""
    return POSITIONS[spec.position_embedding](spec, layout, rngs)


def make_pooling(spec: "ViTSpec", rngs: nnx.Rngs) -> Any:
    """Makes the layer from the tokens to the head's input, [B, N, D] -> [B, D] or [B, 2 D].

    Of a dense head, [B, N', D].
    """
    prefix = spec.registers + spec.has_class_token
    if spec.dense:
        return Patches(prefix)
    if spec.pool == "map":
        heads, mlp_dim = spec.pool_heads or spec.num_heads, spec.pool_mlp_dim or spec.mlp_dim
        own = dataclasses.replace(spec, num_heads=heads, mlp_dim=mlp_dim)
        return AttentionPooling(own, first=0 if spec.pool_prefix else prefix, rngs=rngs)
    if spec.pool == "cls":
        return FirstTokens(1 + spec.distillation_token)
    return PatchMean(prefix, class_token=spec.pool == "cls_avg")


# --- fields

# Parts that a spec names, which are imported by the models that have them.
POSITIONS = entry_points.Parts[Callable[..., Positions]](
    "positions",
    {
        "none": "vit_jax.models.layers.posemb:Positions",
        "learned_1d": "vit_jax.models.layers.posemb:LearnedPositions",
        "learned_2d": "vit_jax.models.layers.posemb:Learned2dPositions",
        "relative": "vit_jax.models.layers.relative:RelativePositions",
        "relative_2d": "vit_jax.models.layers.relative:Relative2dPositions",
        "relative_mlp": "vit_jax.models.layers.relative:RelativeMlpPositions",
        "sincos_1d": "vit_jax.models.layers.posemb:SinCosPositions",
        "sincos_2d": "vit_jax.models.layers.posemb:SinCosPositions",
        "rotary_2d": "vit_jax.models.layers.rotary:Rotary2dPositions",
        "rotary_axial": "vit_jax.models.layers.rotary:AxialRotaryPositions",
        "rotary_mixed": "vit_jax.models.layers.rotary:MixedRotaryPositions",
    },
)
SHARING_BLOCKS = entry_points.Parts[type[SharingBlock]](
    "blocks", {"rotary_mixed": "vit_jax.models.layers.rotary:MixedRotaryBlock"}
)
DENSE_HEADS = entry_points.Parts[Callable[..., nnx.Module]](
    "dense heads",
    {"linear": "vit_jax.models.dense:LinearHead", "conv": "vit_jax.models.dense:ConvHead"},
)
# Position embedding -> where it may act, its default first (see `position_at`).
# "layers": in every block, with separate parameters; "shared": in every block with the same.
PLACES: dict[str, tuple[str, ...]] = {
    "none": ("input",),
    "learned_1d": ("input", "layers", "shared"),
    "learned_2d": ("input", "layers", "shared"),
    "relative": ("layers", "shared"),
    "relative_2d": ("layers", "shared"),
    "relative_mlp": ("layers", "shared"),
    "sincos_1d": ("input", "shared"),
    "sincos_2d": ("input", "shared"),
    "rotary_2d": ("shared",),
    "rotary_axial": ("shared",),
    "rotary_mixed": ("shared",),
}
ROTARY = tuple(kind for kind in PLACES if kind.startswith("rotary"))
RELATIVE = ("relative", "relative_2d", "relative_mlp")  # biases of attention's logits
# What divides the width: sine and cosine; both of them, for rows and columns; rows and columns.
PARTS = {"sincos_1d": 2, "sincos_2d": 4, "learned_2d": 2}
HEAD_PARTS = dict.fromkeys(ROTARY, ROTARY_PARTS)
_NOT_OF_POSITIONS = "is not of model.position_embedding={model.position_embedding}."
_OF_ONE_VECTOR = (
    "is of one vector of an image: take no model.dense, no model.pool=cls_avg and no "
    "model.distillation_token."
)


def _has_vectors(m: Any) -> bool:
    """Returns whether the head sees several vectors of an image."""
    return bool(m.dense or m.pool == "cls_avg" or m.distillation_token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTSpec(ModelSpec, BlockSpec):
    """The fields of a ViT; those without a default come from its name.

    Dropout, dtype, scan, remat and others are in BlockSpec and ModelSpec.
    """

    patch_size: int = field(bounds=COUNT)  # pixels
    depth: int = field(doc="number of blocks", bounds=COUNT, trained=IN_SHAPES)
    pool: str = field(
        "cls",
        "what the head sees: the class token, `cls` [this]; the mean over the tokens, `avg`; both "
        "side by side, `cls_avg` (arXiv 2304.07193); or attention pooling by a learned probe and "
        "an MLP, `map`",
        choices=("cls", "avg", "cls_avg", "map"),
        trained=IN_SHAPES,
        elsewhere=("cls", "avg", "map"),
    )
    dense: str | None = field(
        None,
        "a head for each patch, in place of that for the image: `linear`, batch norm and a 1 x 1 "
        "convolution, or `conv`, two 3 x 3 convolutions that upsample: see [dense "
        "prediction](dense.md)",
        choices=DENSE_HEADS,
        trained=IN_SHAPES,
    )
    pool_prefix: bool = field(
        False,
        "attention pooling takes from class token and registers too, not from patches alone "
        "[false]",
        trained=HIDDEN,
    )
    class_token: bool = field(
        False,
        "a class token beside a pooling that does not read it, `avg` or `map`; `cls` and `cls_avg` "
        "have one [false]",
        trained=IN_SHAPES,
    )
    patch_bias: bool = field(
        True, "whether the patches' projection has one [true]", trained=IN_SHAPES
    )
    patch_norm: bool = field(
        False, "a norm of the embedded patches, before positions [false]", trained=IN_SHAPES
    )
    pre_norm: bool = field(
        False, "a norm of the tokens with positions, before the blocks [false]", trained=IN_SHAPES
    )
    final_norm: str = field(
        "tokens",
        "what the norm behind the blocks is of: the `tokens` [this], the pooled `features`, or "
        "`none`",
        choices=("tokens", "features", "none"),
        trained=HIDDEN,
    )
    pool_heads: int | None = field(
        None, "heads of attention pooling [`num_heads`]", bounds=COUNT, trained=HIDDEN
    )
    pool_mlp_dim: int | None = field(
        None, "hidden width of its MLP [`mlp_dim`]", bounds=COUNT, trained=IN_SHAPES
    )
    pre_logits: bool = field(False, "dense(width) and tanh before the head [false]")
    projection: int = field(
        0,
        "width that features are projected to, without a bias, as CLIP's are to what images and "
        "texts share [0: not projected]",
        bounds=(0, COUNT[1]),
    )
    unit_features: bool = field(
        False,
        "the head sees features of length 1, so its logits are cosines times the lengths of its "
        "columns: see [zero-shot](weights.md#zero-shot) [false]",
        elsewhere=(False,),
    )
    position_embedding: str = field(
        "learned_1d",
        "`none`, `learned_1d` [this], `learned_2d`, `relative`, `relative_2d`, `relative_mlp`, "
        "`sincos_1d`, `sincos_2d`, `rotary_2d`, `rotary_axial` or `rotary_mixed`: see "
        "[variants](vit_variants.md#position-embeddings)",
        choices=PLACES,
        trained=HIDDEN,
        elsewhere=("learned_1d", "sincos_1d", "sincos_2d"),  # as a table
    )
    position_at: str | None = field(
        None,
        "where it acts: at the `input` [this, where it can], in all `layers` with a table each, or "
        "in all with one `shared` table",
        choices=("input", "layers", "shared"),
        trained=HIDDEN,
    )
    absolute_positions: bool = field(
        False,
        "beside rotary positions, those of `learned_1d` at the input too [false]",
        trained=IN_SHAPES,
    )
    rotary_grid: int = field(
        0,
        "rows and columns that `rotary_axial` counts on images of any size; 0: their patches [0]",
        bounds=(0, COUNT[1]),
        trained=HIDDEN,
    )
    rotary_offset: float = field(
        0.0, "the first number of its rows and columns [0]", bounds=(0, 1e3), trained=HIDDEN
    )
    rotary_columns_first: bool = field(
        False, "whether the first half of its angles follows the column [false]", trained=HIDDEN
    )
    position_hidden: int = field(
        128, "width of the MLP of `relative_mlp` [128]", bounds=COUNT, trained=IN_SHAPES
    )
    class_position: bool = field(
        True,
        "whether the class token has a place, and so a position, before the patches [true]; false "
        "in DeiT III and big_vision, see [variants](vit_variants.md#position-embeddings)",
        trained=HIDDEN,
        elsewhere=ANY,
    )
    registers: int = field(
        0,
        "learned tokens that attention sees and the head does not [0]",
        bounds=(0, COUNT[1]),
        trained=IN_SHAPES,
        elsewhere={"huggingface": (0,), "timm": ANY, "google_npz": (0,)},
    )
    distillation_token: bool = field(
        False,
        "a second learned token, behind the class token, with a head of its own, which learns what "
        "a teacher says; in use both heads' logits are averaged (arXiv 2012.12877) [false]",
        trained=IN_SHAPES,
        elsewhere={"huggingface": (False, True), "timm": (False, True), "google_npz": (False,)},
    )
    stochastic_depth: float = field(
        0.0, "rate at the last block, rising linearly from 0 at the first [0]", bounds=(0, 1)
    )
    stochastic_depth_constant: bool = field(
        False, "that rate at every block, as in DeiT III [false]"
    )
    residual_dtype: str | None = field(
        None,
        "dtype of the residual stream: `float32`, or [that of `dtype`]; `float32` beside a `dtype` "
        "of `bfloat16` computes what float32 programs do at a TPU's default precision of products",
        choices=("float32",),
    )

    crop_to_patches: bool = field(
        False,
        "takes images that patches do not divide, and leaves out the pixels at the bottom and "
        "right that fill no patch, as timm and transformers do [false: such sizes are refused]",
    )

    @property
    def stream_dtype(self) -> str:
        """The dtype of the tokens between the blocks."""
        return self.residual_dtype or self.dtype

    @property
    def logit_transforms(self) -> frozenset[str]:
        bias = {BIAS} if self.position_embedding in RELATIVE else set()
        return super().logit_transforms | bias

    @property
    def has_class_token(self) -> bool:
        """Returns whether the model has a class token."""
        return self.class_token or self.pool in ("cls", "cls_avg")

    @property
    def features(self) -> int:
        """Width of the features: of the head's input, or of both heads' side by side."""
        two = self.distillation_token or (self.pool == "cls_avg" and not self.dense)
        return self.projection or self.width * (2 if two else 1)

    @property
    def distillation_position(self) -> bool:
        """Whether the distillation token has a learned position, as the class token then has."""
        learned = self.position_embedding == "learned_1d" and self.position_place == "input"
        return self.distillation_token and learned and self.class_position

    @property
    def position_place(self) -> str:
        """The place where the position embedding acts, one of PLACES."""
        return self.position_at or PLACES[self.position_embedding][0]

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return self.patch_size

    constraints: ClassVar[tuple[Constraint, ...]] = (
        multiple("width", lambda m: m.num_heads, "does not divide into {model.num_heads} heads"),
        multiple(
            "width", lambda m: math.lcm(PARTS.get(m.position_embedding, 1), m.num_heads),
            "does not divide into the parts of position_embedding={model.position_embedding}",
        ),
        multiple(
            "width", lambda m: m.num_heads * HEAD_PARTS.get(m.position_embedding, 1),
            f"does not divide into {{model.num_heads}} heads of {ROTARY_PARTS} parts",
        ),
        rule(
            "pool_heads", lambda m: m.width % (m.pool_heads or m.num_heads),
            "does not divide model.width={model.width}.",
        ),
        rule(
            "pre_logits", lambda m: m.pre_logits and m.pool == "cls_avg",
            "does not go with model.pool=cls_avg.",
        ),
        rule(
            "final_norm",
            lambda m: m.final_norm == "features" and (m.pool == "cls_avg" or m.distillation_token),
            "is of one vector, not of two: leave it out, or take another model.pool and no "
            "model.distillation_token.",
        ),
        rule("projection", lambda m: m.projection and _has_vectors(m), _OF_ONE_VECTOR),
        rule("unit_features", lambda m: m.unit_features and _has_vectors(m), _OF_ONE_VECTOR),
        rule(
            "distillation_token",
            lambda m: m.distillation_token and (m.pool != "cls" or m.pre_logits),
            "goes with model.pool=cls, not pool={model.pool}, pre_logits={model.pre_logits}.",
        ),
        rule(
            "dense", lambda m: m.dense and (m.pre_logits or m.distillation_token),
            "takes patches as they are: leave out pre_logits and distillation_token.",
        ),
        rule(
            "norm_stream", lambda m: m.norm_stream and m.parallel,
            "is of the second norm, which model.parallel=true has not: leave one of them out.",
        ),
        rule(
            "norm_branch",
            lambda m: m.norm_branch and (m.parallel or m.norm_stream or m.layer_scale),
            "goes neither with model.parallel nor with model.norm_stream or model.layer_scale.",
        ),
        rule(
            "attention",
            lambda m: m.attention_dropout and m.attention not in (choice.AUTO, choice.XLA),
            "has no attention_dropout: set model.attention=auto.",
        ),
        rule(
            "position_at", lambda m: m.position_at not in (None, *PLACES[m.position_embedding]),
            "is not a place of model.position_embedding={model.position_embedding}.",
        ),
        *unread_rules(
            "model", ("rotary_grid", "rotary_offset", "rotary_columns_first"),
            lambda c: c.model.position_embedding == "rotary_axial", _NOT_OF_POSITIONS,
        ),
        *unread_rules(
            "model", ("rotary_base", "absolute_positions"),
            lambda c: c.model.position_embedding in ROTARY, _NOT_OF_POSITIONS,
        ),
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        head_size = self.width // self.num_heads
        attention = choice.Attention(
            head_size, self.dtype, self.softmax_dtype, self.logit_transforms
        )
        choice.check(self.attention, attention)

    def takes_size(self, size: tuple[int, int], image_size: tuple[int, int]) -> bool:
        if self.position_embedding == "none":
            divides = self.crop_to_patches or not any(side % self.patch_size for side in size)
            return divides and min(size) >= self.patch_size
        p = self.patch_size if self.crop_to_patches else 1
        return [side // p for side in size] == [side // p for side in image_size]

    def token_layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """Layout of the tokens for images of this size. UserError if patches do not tile them."""
        p = self.patch_size
        has_remainder = not self.crop_to_patches and any(side % p for side in image_size)
        if has_remainder or min(image_size) < p:
            near = tuple(errors.nearest_multiple(side, p) for side in image_size)
            crop = " model.crop_to_patches=true leaves out pixels that fill no patch."
            raise errors.UserError(
                f"Image size {image_size} does not divide into patches of {p} pixels; nearest: "
                f"{near}.{crop if min(image_size) >= p else ''}"
            )
        grid = (image_size[0] // p, image_size[1] // p)
        # The distillation token's position is a parameter of its own: here it counts as a register.
        registers = self.registers + self.distillation_token
        return TokenLayout(grid, self.has_class_token, registers, self.class_position)

    def attended(self, layout: TokenLayout) -> tuple[int, ...]:
        """For each attention of a block: the number of tokens that each token takes from."""
        return (layout.num_tokens,)

    def activation_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that the blocks keep for their backward pass, unpadded.

        For each token: a block's input, its middle (unless `parallel`), query and key (before and
        after their norms, if any), value (and with its residual), attention's mixed values, the
        hidden layer before its GELU (if gated, both), these two before norms of theirs, if any, and
        attention's weights, or where a program keeps none (layers/kernels), a float32 for each
        head. If the tokens between blocks are float32 and the rest is not, the first two count
        twice.
        """
        layout = self.token_layout(image_size)
        width_arrays = (2 - self.parallel) * self._stream_size + 4 + 2 * self.qk_norm
        width_arrays += self.attention_norm + (self.value_residual > 0)
        mlp_arrays = 1 + (self.mlp != "mlp") + self.mlp_norm
        elements = 0  # of a token
        for seen in self.attended(layout):
            per_head = (
                seen if choice.keeps_weights(self.attention, seen, self.logit_transforms) else 2
            )
            elements += width_arrays * self.width + mlp_arrays * self.mlp_dim
            elements += self.num_heads * per_head
        return 2 * self.depth * layout.num_tokens * elements

    def block_input_bytes(self, image_size: tuple[int, int]) -> int:
        """Bytes of one image in bfloat16 that enter the blocks: the least that is kept."""
        elements = self._stream_size * self.width  # of a token
        return 2 * self.depth * self.token_layout(image_size).num_tokens * elements

    @property
    def _stream_size(self) -> int:
        """Ratio of the bytes of an element in tokens between blocks to those within blocks."""
        return 1 if self.stream_dtype == self.dtype else 2


# --- names: sizes, and backbones with further fields

Fields = dict[str, Any]

# Table 1 of the paper; Ti and S from arXiv 2012.12877 and 2106.10270, g and G from 2106.04560
# (table 2), So400m from 2305.13035.
SIZES: dict[str, dict[str, int]] = {
    "Ti": {"depth": 12, "width": 192, "mlp_dim": 768, "num_heads": 3},
    "S": {"depth": 12, "width": 384, "mlp_dim": 1536, "num_heads": 6},
    "B": {"depth": 12, "width": 768, "mlp_dim": 3072, "num_heads": 12},
    "L": {"depth": 24, "width": 1024, "mlp_dim": 4096, "num_heads": 16},
    "So400m": {"depth": 27, "width": 1152, "mlp_dim": 4304, "num_heads": 16},
    "H": {"depth": 32, "width": 1280, "mlp_dim": 5120, "num_heads": 16},
    "g": {"depth": 40, "width": 1408, "mlp_dim": 6144, "num_heads": 16},
    "G": {"depth": 48, "width": 1664, "mlp_dim": 8192, "num_heads": 16},
}

# arXiv 2304.07193 (table 17, appendix B.1). SwiGLU's hidden width is 2/3 of 4 times the width.
_DINOV2: Fields = {"gelu": "exact", "layer_scale": 1e-5}
_DINOV2_SIZES: dict[str, Fields] = {
    **{size: SIZES[size] for size in ("S", "B", "L")},
    "g": {"depth": 40, "width": 1536, "mlp_dim": 4096, "num_heads": 24, "mlp": "swiglu"},
}
# arXiv 2508.10104 and the authors' code (dinov3/hub/backbones.py).
_DINOV3: Fields = {
    "gelu": "exact", "layer_scale": 1e-5, "norm_epsilon": 1e-5, "registers": 4,
    "position_embedding": "rotary_2d", "qkv_bias": "query_value",
}  # fmt: skip
_DINOV3_SIZES: dict[str, Fields] = {
    **{size: SIZES[size] for size in ("S", "B", "L")},
    "S+": {**SIZES["S"], "mlp": "swiglu"},
    "H+": {**SIZES["H"], "num_heads": 20, "mlp": "swiglu"},
    "7B": {
        "depth": 40, "width": 4096, "mlp_dim": 8192, "num_heads": 32, "mlp": "swiglu",
        "qkv_bias": "none",
    },
}  # fmt: skip
# arXiv 2302.05442: section 2 and table 1.
_VIT_22B: Fields = {
    "depth": 48, "width": 6144, "mlp_dim": 24_576, "num_heads": 48, "pool": "map",
    "parallel": True, "qk_norm": True, "qkv_bias": "none", "norm": "rms",
}  # fmt: skip

# Suffix after the patch size in a name -> fields of all its sizes, and the sizes.
STYLES: dict[str, tuple[Fields, dict[str, Fields]]] = {
    "": ({}, {**SIZES, "22B": _VIT_22B}),
    "-dinov2": (_DINOV2, _DINOV2_SIZES),
    "-dinov2-reg": ({**_DINOV2, "registers": 4}, _DINOV2_SIZES),  # arXiv 2309.16588
    "-dinov3": (_DINOV3, _DINOV3_SIZES),
}
PLAIN = (
    "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32",
    "ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14",
)  # fmt: skip
PUBLISHED = (
    *PLAIN,
    "ViT-22B/14",
    *(f"ViT-{size}/14-dinov2" for size in _DINOV2_SIZES),
    *(f"ViT-{size}/14-dinov2-reg" for size in _DINOV2_SIZES),
    *(f"ViT-{size}/16-dinov3" for size in _DINOV3_SIZES),
)
FORM = (
    f"ViT-<{'|'.join(STYLES[''][1])}|DEPTHxWIDTH>/<patch size in pixels>, -dinov2, -dinov2-reg or "
    "-dinov3 behind"
)

_NAME = re.compile(r"ViT-([A-Za-z0-9+]+)/(\d+)((?:-[a-z0-9]+)*)")
# Unnamed sizes: depth x width; the MLP is 4 times as wide, and heads have 64 channels.
_SHAPE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,5})")
_HEAD_SIZE = 64


def named(name: str) -> Fields | None:
    """The fields for "ViT-B/16"; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if not match or int(match[2]) == 0 or match[3] not in STYLES:
        return None
    style, sizes = STYLES[match[3]]
    size = sizes.get(match[1]) or of_shape(match[1])
    return None if size is None else {"patch_size": int(match[2]), **style, **size}


def of_shape(size: str) -> Fields | None:
    """The fields for "12x512"; None for a word of another form."""
    match = _SHAPE.fullmatch(size)
    if not match:
        return None
    depth, width = int(match[1]), int(match[2])
    num_heads = width // _HEAD_SIZE if width % _HEAD_SIZE == 0 else 1
    return {"depth": depth, "width": width, "mlp_dim": 4 * width, "num_heads": num_heads}


FAMILY = Family(kind="A ViT", form=FORM, published=PUBLISHED, spec=ViTSpec, named=named, module=ViT)
