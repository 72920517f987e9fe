"""The fields of a ViT, their valid combinations, and their costs."""

import dataclasses
import math

from vit_jax.core import errors
from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.models.family import ModelSpec
from vit_jax.nn.block_spec import BlockSpec
from vit_jax.nn.posemb import ROTARY_PARTS, TokenLayout

# Position embedding -> where it may act, its default first (see `position_at`).
# "layers": in every block, with separate parameters; "shared": in every block with the same.
PLACES: dict[str, tuple[str, ...]] = {
    "none": ("input",),
    "learned_1d": ("input", "layers", "shared"),
    "learned_2d": ("input", "layers", "shared"),
    "relative": ("layers", "shared"),
    "sincos_1d": ("input", "shared"),
    "sincos_2d": ("input", "shared"),
    "rotary_2d": ("shared",),
}
# Number of equal parts of the width: sines and cosines, of one coordinate or of two.
POSITION_PARTS = {"sincos_1d": 2, "sincos_2d": 4, "learned_2d": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTSpec(ModelSpec, BlockSpec):
    """The fields of a ViT; those without a default come from its name."""

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
    pre_logits: bool = field(False, "dense(width) and tanh before the head [false]")
    position_embedding: str = field(
        "learned_1d",
        "`none`, `learned_1d` [this], `learned_2d`, `relative`, `sincos_1d`, `sincos_2d` or "
        "`rotary_2d`: see [variants](vit_variants.md#position-embeddings)",
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
    )
    stochastic_depth: float = field(
        0.0, "rate at the last block, rising linearly from 0 at the first [0]", bounds=(0, 1)
    )
    stochastic_depth_constant: bool = field(
        False, "that rate at every block, as in DeiT III [false]"
    )
    residual_dtype: str | None = field(
        None,
        "in what the tokens between blocks are kept, which each block adds to: `float32` [as "
        "`dtype`]; `float32` beside a `dtype` of `bfloat16` is what float32 programs with a TPU's "
        "default precision of products compute",
        choices=("float32",),
    )

    @property
    def stream_dtype(self) -> str:
        """The dtype of the tokens between the blocks."""
        return self.residual_dtype or self.dtype

    @property
    def has_class_token(self) -> bool:
        """Whether the model has a class token."""
        return self.pool in ("cls", "cls_avg")

    @property
    def features(self) -> int:
        """Width of the head's input."""
        return self.width * (2 if self.pool == "cls_avg" else 1)

    @property
    def position_place(self) -> str:
        """The place where the position embedding acts, one of PLACES."""
        return self.position_at or PLACES[self.position_embedding][0]


def check(spec: ViTSpec) -> None:
    """Raises UserError for fields that cannot be combined."""
    if spec.width % spec.num_heads:
        raise errors.UserError(
            f"model.width={spec.width} does not divide into model.num_heads={spec.num_heads}; "
            f"nearest width: {_nearest_multiple(spec.width, spec.num_heads)}."
        )
    if spec.pre_logits and spec.pool == "cls_avg":
        raise errors.UserError(
            "model.pre_logits does not go with model.pool=cls_avg: leave it out, or take pool=cls."
        )
    _check_positions(spec)
    if not spec.norm_epsilon:
        raise errors.UserError("model.norm_epsilon=0: a small positive number, such as 1e-6.")


def _check_positions(spec: ViTSpec) -> None:
    kind = spec.position_embedding
    if spec.position_at is not None and spec.position_at not in PLACES[kind]:
        raise errors.UserError(
            f"model.position_at={spec.position_at} does not go with "
            f"model.position_embedding={kind}, which may be at: {', '.join(PLACES[kind])}."
        )
    parts = POSITION_PARTS.get(kind, 1)
    if spec.width % parts:
        nearest = _nearest_multiple(spec.width, math.lcm(parts, spec.num_heads))
        raise errors.UserError(
            f"model.width={spec.width} does not divide into the {parts} parts of "
            f"model.position_embedding={kind}; nearest width: {nearest}."
        )
    if kind == "rotary_2d" and spec.width % (spec.num_heads * ROTARY_PARTS):
        nearest = _nearest_multiple(spec.width, spec.num_heads * ROTARY_PARTS)
        raise errors.UserError(
            f"model.width={spec.width} gives each of {spec.num_heads} heads "
            f"{spec.width // spec.num_heads}, which does not divide into the {ROTARY_PARTS} parts "
            f"of model.position_embedding={kind}; nearest width: {nearest}."
        )


def _nearest_multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of


def token_layout(spec: ViTSpec, image_size: tuple[int, int]) -> TokenLayout:
    """Layout of the tokens for images of this size. UserError if patches do not tile them."""
    p = spec.patch_size
    if any(side % p or side < p for side in image_size):
        near = tuple(_nearest_multiple(side, p) for side in image_size)
        raise errors.UserError(
            f"Image size {image_size} does not divide into patches of {p} pixels; nearest: {near}. "
            "Change the size in input.preprocess or the patch in model.name."
        )
    grid = (image_size[0] // p, image_size[1] // p)
    return TokenLayout(grid, spec.has_class_token, spec.registers, spec.class_position)


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
    """`forward_flops` without the projection of patches."""
    layout, d = token_layout(spec, image_size), spec.width
    n = layout.num_tokens
    projections = n * 4 * d * d
    attention = 2 * n * n * d
    offsets = (spec.position_embedding == "relative") * n * (2 * n - 1) * d
    mlp = n * (2 + (spec.mlp != "mlp")) * d * spec.mlp_dim
    # The probe's query is the same for every image, so it is not counted.
    seen = n - layout.registers
    one_query = seen * 2 * d * d + 2 * seen * d + d * d + 2 * d * spec.mlp_dim
    pooling = (spec.pool == "map") * one_query
    head = spec.features * num_classes + spec.pre_logits * d * d
    return 2 * (spec.depth * (projections + attention + offsets + mlp) + pooling + head)


def activation_bytes(spec: ViTSpec, *, image_size: tuple[int, int]) -> int:
    """Bytes of one image in bfloat16 that the blocks keep for their backward pass, unpadded.

    For each token: a block's input, its middle (unless `parallel`), query and key (before and after
    their norms, if any), value, attention's mixed values, the hidden layer before its GELU (if
    gated, both), and attention's weights. If the tokens between blocks are float32 and the rest is
    not, the first two count twice.
    """
    n = token_layout(spec, image_size).num_tokens
    of_width = (2 - spec.parallel) * _stream_size(spec) + 4 + 2 * spec.qk_norm
    of_mlp = 1 + (spec.mlp != "mlp")
    of_a_token = of_width * spec.width + of_mlp * spec.mlp_dim + spec.num_heads * n
    return 2 * spec.depth * n * of_a_token


def block_input_bytes(spec: ViTSpec, *, image_size: tuple[int, int]) -> int:
    """Bytes of one image in bfloat16 that enter the blocks: the least that is kept for backward."""
    of_a_token = _stream_size(spec) * spec.width
    return 2 * spec.depth * token_layout(spec, image_size).num_tokens * of_a_token


def _stream_size(spec: ViTSpec) -> int:
    """Ratio of the bytes of an element in tokens between blocks to those within blocks."""
    return 1 if spec.stream_dtype == spec.dtype else 2
