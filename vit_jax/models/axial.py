"""Models with axial attention: each attends along rows, then along columns.

Axial-ViT (arXiv 2010.11929, appendix D.6) is a ViT of such blocks. AxialResNet (arXiv 2003.07853, a
baseline in that appendix) is a ResNet with axial attention for its 3 x 3 convolutions, with group
norms and standardised weights; its small constants are those of Scenic's implementation, by authors
of arXiv 2010.11929.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from vit_jax.core.axes import (
    BATCH,
    CHANNELS,
    HEAD_SIZE,
    POSITIONS,
    STREAM,
    TOKENS,
    WIDTH,
    constrain,
)
from vit_jax.core.schema.constraints import Constraint, value_rules
from vit_jax.core.schema.fields import ABOVE_0, ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models import vit
from vit_jax.models.bit import DEPTHS, ROOT_WIDTH, UNITS, BiT, BiTSpec, units_of
from vit_jax.models.family import Family, rule
from vit_jax.models.layers.block import AdjustedAttention, Block, BlockSpec, SharingBlock
from vit_jax.models.layers.kernels import choice
from vit_jax.models.layers.kernels.xla import (
    MIXED,
    PROJECTED,
    WEIGHTS,
    Projected,
    attend,
    normalised_weights,
)
from vit_jax.models.layers.linear import Linear, param
from vit_jax.models.layers.logits import TRANSFORMS
from vit_jax.models.layers.norm import GroupNorm
from vit_jax.models.layers.regularization import split_key
from vit_jax.models.layers.resnet import Bottleneck, ResNetSpec, StdConv, halved
from vit_jax.models.layers.stack import UnitShape
from vit_jax.models.vit import RELATIVE, SIZES, ViT, ViTSpec

ROW, COLUMN = "row", "column"  # kinds of lines
Grid = tuple[int, int]  # rows and columns


def lines(x: jax.Array, grid: Grid, kind: str) -> jax.Array:
    """[B, N, ...], row by row -> [B * rows, columns, ...], or [B * columns, rows, ...]."""
    x = x.reshape(x.shape[0], *grid, *x.shape[2:])
    x = x if kind == ROW else jnp.swapaxes(x, 1, 2)
    return x.reshape(-1, *x.shape[2:])


def joined(x: jax.Array, grid: Grid, kind: str) -> jax.Array:
    """The reverse of `lines`: [B * rows, columns, ...], or by columns -> [B, N, ...]."""
    order = grid if kind == ROW else grid[::-1]
    x = x.reshape(-1, *order, *x.shape[2:])
    x = x if kind == ROW else jnp.swapaxes(x, 1, 2)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


class LineAttention(AdjustedAttention):
    """Self-attention along the rows, or the columns, of a grid of tokens.

    Always by XLA's program: the kernels are for more tokens than a line has.
    """

    def __init__(self, spec: BlockSpec, *, grid: Grid, kind: str, rngs: nnx.Rngs):
        super().__init__(spec, rngs=rngs)
        self.grid, self.kind = grid, kind

    def weights(self, projected: Projected) -> jax.Array:
        """-> [B, H, N, N] float32; zeros outside of a token's line. Rows sum to 1."""
        batch = projected.query.shape[0]
        query, key = (lines(x, self.grid, self.kind) for x in projected[:2])
        within = normalised_weights(query, key)
        rows, columns = self.grid
        number = rows if self.kind == ROW else columns
        within = within.reshape(batch, number, *within.shape[1:])
        same = jnp.eye(number, dtype=within.dtype)
        order = "bhlqmk" if self.kind == ROW else "bhqlkm"
        return jnp.einsum(f"blhqk,lm->{order}", within, same).reshape(
            batch, -1, rows * columns, rows * columns
        )

    def mix(self, projected: Projected, key: jax.Array | None) -> jax.Array:
        assert not projected.transforms
        each = (lines(x, self.grid, self.kind) for x in projected[:3])
        return joined(attend(*each, self.precision.softmax), self.grid, self.kind)


class AxialBlock(nnx.Module):
    """Two encoder blocks: attention along rows and an MLP, along columns and an MLP.

    arXiv 2010.11929, appendix D.6. Norms, residuals, dropout and stochastic depth are those of
    each `Block`.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        grid: Grid,
        make_block: Callable[..., Block] = Block,
        rngs: nnx.Rngs,
    ):
        def block(kind: str) -> Block:
            attention = functools.partial(LineAttention, grid=grid, kind=kind)
            return make_block(spec, attention=attention, rngs=rngs)

        self.row, self.column = block(ROW), block(COLUMN)

    @property
    def attention_blocks(self) -> tuple[Block, ...]:
        """The blocks, one after the other."""
        return self.row, self.column

    @property
    def sharing_blocks(self) -> tuple[SharingBlock, ...]:
        """The blocks with the position embedding of the whole model."""
        return (*self.row.sharing_blocks, *self.column.sharing_blocks)

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, drop_rate: jax.Array | None = None
    ) -> jax.Array:
        """[B, N, D] -> [B, N, D]; the arguments of `Block`."""
        row_key, column_key = split_key(key, 2)
        return self.column(self.row(x, row_key, drop_rate), column_key, drop_rate)


class PositionSensitiveAttention(nnx.Module):
    """Attention along a line, with learned offsets in queries, keys and values.

    For query o and key p the logit is q_o k_p + q_o a_(p-o) + k_p b_(p-o), and what is mixed
    v_p + c_(p-o). Queries and keys have half as many channels as values, and the logits are not
    scaled. All heads share the offsets, in whose table p - o is row p - o + n - 1: a, b and c side
    by side.
    """

    def __init__(
        self, channels: int, num_heads: int, length: int, spec: ResNetSpec, *, rngs: nnx.Rngs
    ):
        self.num_heads, self.length, self.precision = num_heads, length, spec.precision
        # As in the authors' code (csrhddlam/axial-deeplab), normal by the number of inputs.
        self.query_key_value = Linear(
            (channels,),
            (2 * channels,),
            (WIDTH,),
            (CHANNELS,),
            kernel_init=initializers.variance_scaling(1.0, "fan_in", "normal"),
            bias=False,
            precision=spec.precision,
            rngs=rngs,
        )
        self.norm1 = GroupNorm(2 * channels, CHANNELS, spec, rngs)
        head_size = channels // num_heads
        init, shape = initializers.normal(head_size**-0.5), (2 * length - 1, 2 * head_size)
        self.offsets = param(init, shape, (POSITIONS, HEAD_SIZE), rngs.params())
        self.norm2 = GroupNorm(channels, CHANNELS, spec, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, n, C] -> [B, n, C]."""
        x = checkpoint_name(self.query_key_value(x), PROJECTED)
        x = _norm_lines(self.norm1, constrain(x, BATCH, TOKENS, CHANNELS))
        query, key, value = self._parts(x.reshape(*x.shape[:2], self.num_heads, -1))
        a, b, c = self._parts(self._table().astype(x.dtype))
        logits = _product("bqhd,bkhd->bhqk", query, key)
        logits += _product("bqhd,qkd->bhqk", query, a) + _product("bkhd,qkd->bhqk", key, b)
        weights = checkpoint_name(jax.nn.softmax(logits).astype(x.dtype), WEIGHTS)
        mixed = _product("bhqk,bkhd->bqhd", weights, value)
        mixed += _product("bhqk,qkd->bqhd", weights, c)
        mixed = checkpoint_name(mixed.astype(x.dtype), MIXED).reshape(*x.shape[:2], -1)
        return _norm_lines(self.norm2, constrain(mixed, BATCH, TOKENS, CHANNELS))

    def _table(self) -> jax.Array:
        """[n, n, 2K]: of each query and key."""
        place = np.arange(self.length)
        return self.offsets[...][place - place[:, None] + self.length - 1]

    def _parts(self, x: jax.Array) -> list[jax.Array]:
        """[..., 2K] -> [..., K / 2], [..., K / 2], [..., K]."""
        half = x.shape[-1] // 4
        return jnp.split(x, (half, 2 * half), axis=-1)


def _norm_lines(norm: nnx.Module, x: jax.Array) -> jax.Array:
    """Applies a norm of feature maps to lines [B, n, C]."""
    return norm(x[:, :, None])[:, :, 0]


def _product(axes: str, *operands: jax.Array) -> jax.Array:
    """Rounded to the computation's dtype, and then float32, to be added.

    XLA for CPUs has no products of bfloat16 to float32 in the backward pass.
    """
    return jnp.einsum(axes, *operands).astype(jnp.float32)


class AxialUnit(Bottleneck):
    """A bottleneck unit with axial attention in place of its 3 x 3 convolution.

    Norms and relus are behind the convolutions, as in a hybrid's ResNet; a stride is the mean over
    2 x 2 positions behind the attention.
    """

    def __init__(self, shape: UnitShape, spec: "AxialResNetSpec", *, rngs: nnx.Rngs):
        inputs, hidden, outputs, size = shape.inputs, shape.hidden, shape.outputs, shape.size_in
        conv: Any = functools.partial(StdConv, spec=spec, rngs=rngs)
        norm: Any = functools.partial(GroupNorm, spec=spec, rngs=rngs)
        along = functools.partial(
            PositionSensitiveAttention, hidden, spec.num_heads, spec=spec, rngs=rngs
        )
        self.conv1 = conv(1, (inputs, hidden), (WIDTH, CHANNELS))
        self.norm1 = norm(hidden, CHANNELS)
        self.column, self.row = along(size[0]), along(size[1])
        self.conv3 = conv(1, (hidden, outputs), (CHANNELS, WIDTH))
        # A unit starts as its shortcut alone.
        self.norm3 = norm(outputs, WIDTH, scale_init=initializers.zeros)
        if not shape.adds:
            self.projection = conv(1, (inputs, outputs), (STREAM, WIDTH), stride=shape.stride)
            self.projection_norm = norm(outputs, WIDTH)
        self.projects, self.pre_activation = not shape.adds, spec.pre_activation
        self.size, self.stride = size, shape.stride

    def _middle(self, y: jax.Array) -> jax.Array:
        shape = y.shape
        y = y.reshape(shape[0], -1, shape[3])
        for kind, attention in ((COLUMN, self.column), (ROW, self.row)):
            y = joined(attention(lines(y, self.size, kind)), self.size, kind)
        return _halved(y.reshape(shape)) if self.stride == 2 else y.reshape(shape)


def _halved(x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), C]: means, of fewer positions at odd ends."""
    mean = functools.partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2), padding="SAME")
    return mean(x, count_include_pad=False)


PREFIX = "Axial-"  # before the name of a ViT
VIT_PUBLISHED = ("Axial-ViT-B/16", "Axial-ViT-B/32")  # figure 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialViTSpec(ViTSpec):
    """The fields of a ViT; each of its `depth` blocks is two here, along rows and along columns.

    The tokens are a grid, so there is no class token: the mean over the patches (`pool=avg`, which
    names imply) or attention pooling is what the head sees.
    """

    constraints: ClassVar[tuple[Constraint, ...]] = (
        rule(
            "pool", lambda m: m.pool not in ("avg", "map"),
            "does not go with an Axial-ViT: set pool=avg or pool=map.",
        ),
        *value_rules(
            "model",
            ("class_token", "registers", "attention_dropout", "value_residual", *TRANSFORMS),
            lambda value, _: value, "is not for an Axial-ViT: leave it out.",
        ),
        rule(
            "position_embedding", lambda m: m.position_embedding in RELATIVE,
            "is not for the lines of an Axial-ViT.",
        ),
        rule(
            "attention", lambda m: m.attention not in (choice.AUTO, choice.XLA),
            "is not for an Axial-ViT: set model.attention=auto.",
        ),
        *ViTSpec.constraints,
    )  # fmt: skip

    def takes_size(self, size: tuple[int, int], image_size: tuple[int, int]) -> bool:
        """Whether a model for `image_size` takes images of `size`: its lines are that long."""
        fits = super().takes_size(size, image_size)
        return fits and self.token_layout(size).grid == self.token_layout(image_size).grid

    def attended(self, layout: TokenLayout) -> tuple[int, ...]:
        rows, columns = layout.grid
        return columns, rows


def named_vit(name: str) -> dict[str, Any] | None:
    """The fields for "Axial-ViT-B/16"; None for a name of another form."""
    plain = name.removeprefix(PREFIX)
    fields = None if plain == name else vit.named(plain)
    is_plain = fields is not None and fields.keys() <= {"patch_size", *SIZES["B"]}
    return {**fields, "pool": "avg"} if fields and is_plain else None


class AxialViT(ViT):
    """A ViT of axial blocks: twice as many attentions, each along one axis, and as many MLPs."""

    spec: AxialViTSpec

    def _make_block(
        self, make_block: Callable[..., Block], layout: TokenLayout, rngs: nnx.Rngs
    ) -> nnx.Module:
        return AxialBlock(self.spec, grid=layout.grid, make_block=make_block, rngs=rngs)


AXIAL_VIT = Family(
    kind="An Axial-ViT",
    form="Axial-ViT-<size>/<patch>",
    published=VIT_PUBLISHED,
    spec=AxialViTSpec,
    named=named_vit,
    module=AxialViT,
)


RESNET_PUBLISHED = ("AxialResNet-50",)
_RESNET_NAME = re.compile(rf"AxialResNet-({UNITS})(?:x(\d+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetSpec(BiTSpec):
    """The fields of a BiT, whose norms and relus are behind its convolutions, and heads."""

    pre_activation: ClassVar[bool] = False
    pad: ClassVar[str] = "same"
    num_heads: int = field(8, "of the attention", bounds=COUNT, trained=IN_SHAPES, elsewhere=ANY)
    group_norm_epsilon: float = field(1e-4, bounds=(ABOVE_0, 1), trained=HIDDEN, elsewhere=ANY)

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *BiTSpec.constraints,
        rule(
            "num_heads", lambda m: m.root_width % (2 * m.num_heads),
            "as twice as many do not divide model.root_width={model.root_width}.",
        ),
    )  # fmt: skip

    def takes_size(self, size: tuple[int, int], image_size: tuple[int, int]) -> bool:
        """Whether a model for `image_size` takes images of `size`: its lines are that long."""
        return halved(halved(size)) == halved(halved(image_size))

    def middle_elements(self, unit: UnitShape) -> int:
        norm_inputs = 2 * 3 * unit.hidden
        return math.prod(unit.size_in) * (norm_inputs + self.num_heads * sum(unit.size_in))


def named_resnet(name: str) -> dict[str, Any] | None:
    """The fields for "AxialResNet-50", "AxialResNet-50x2" or "AxialResNet-1-2"; None for others."""
    match = _RESNET_NAME.fullmatch(name)
    units = match and units_of(match[1])
    if not match or not units or match[2] == "0":
        return None
    return {"units": units, "root_width": ROOT_WIDTH * int(match[2] or 1)}


class AxialResNet(BiT):
    """A BiT with other units; its learned offsets are for a feature map of one size."""

    spec: AxialResNetSpec
    unit = AxialUnit


AXIAL_RESNET = Family(
    kind="An AxialResNet",
    form=f"AxialResNet-<{'|'.join(map(str, DEPTHS))}|units of stages, as 1-2>, x<width factor> "
    "behind",
    published=RESNET_PUBLISHED,
    spec=AxialResNetSpec,
    named=named_resnet,
    module=AxialResNet,
)
