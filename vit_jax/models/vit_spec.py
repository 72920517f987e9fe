"""The fields of a ViT, and what they cannot be."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from vit_jax.core import errors
from vit_jax.models import fields as checks
from vit_jax.nn import rotary
from vit_jax.nn.attention import QKV_BIASES
from vit_jax.nn.initialization import INITIALIZATIONS, Initialization
from vit_jax.nn.linear import EPSILON
from vit_jax.nn.mlp import GELUS, MLPS
from vit_jax.nn.norm import NORMS
from vit_jax.nn.posemb import TokenLayout
from vit_jax.nn.precision import Precision

# What the weights were trained as. The other fields say how to train or compute them further.
ARCHITECTURE = (
    "width", "depth", "mlp_dim", "num_heads", "pool", "position_embedding", "position_at",
    "class_position", "registers", "layer_scale", "mlp", "gelu", "parallel", "qk_norm", "qkv_bias",
    "dense_bias", "norm", "norm_epsilon",
)  # fmt: skip

# Position embedding -> where it may act, first where it does unless `position_at` says otherwise.
# "layers": in every block, with parameters of its own; "shared": in every block with the same.
PLACES: dict[str, tuple[str, ...]] = {
    "none": ("input",),
    "learned_1d": ("input", "layers", "shared"),
    "learned_2d": ("input", "layers", "shared"),
    "relative": ("layers", "shared"),
    "sincos_1d": ("input", "shared"),
    "sincos_2d": ("input", "shared"),
    "rotary_2d": ("shared",),
}
# The width is cut into as many equal parts: sines and cosines, of one coordinate or of two.
POSITION_PARTS = {"sincos_1d": 2, "sincos_2d": 4, "learned_2d": 2}

# Fields with a choice of words.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "pool": ("cls", "avg", "cls_avg", "map"),
    "position_embedding": tuple(PLACES),
    "position_at": (None, "input", "layers", "shared"),
    "mlp": MLPS,
    "gelu": tuple(GELUS),
    "qkv_bias": QKV_BIASES,
    "norm": NORMS,
    "initialization": tuple(INITIALIZATIONS),
    "softmax_dtype": ("float32", "bfloat16"),
    "residual_dtype": (None, "float32"),
    **checks.OF_PRECISION,
}


@dataclasses.dataclass(frozen=True)
class ViTSpec:
    """The fields of a ViT; those without a default come from its name."""

    patch_size: int
    depth: int
    width: int
    mlp_dim: int
    num_heads: int
    pool: str = "cls"  # class token; "avg": mean; "cls_avg": both; "map": attention pooling
    pre_logits: bool = False  # dense(width) + tanh before the head (section 3.1: pre-training)
    position_embedding: str = "learned_1d"
    position_at: str | None = None  # of PLACES; None: the first
    class_position: bool = True  # the class token has a place before the patches
    registers: int = 0  # learned tokens besides, which the head does not see (arXiv 2309.16588)
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    stochastic_depth_constant: bool = (
        False  # that rate in every block, not rising from 0 to the last
    )
    layer_scale: float = 0.0  # initial value of LayerScale; 0: none
    mlp: str = "mlp"  # or gated, "swiglu" or "geglu": mlp_dim is the width behind the gate
    gelu: str = "tanh"
    parallel: bool = False  # attention and MLP side by side
    qk_norm: bool = False  # a norm over each head's queries and keys
    qkv_bias: str = "all"  # "query_value", "none"
    dense_bias: bool = True  # of attention's output and the MLP
    norm: str = "layer"  # of nn.norm.NORMS
    norm_epsilon: float = EPSILON  # of these norms
    initialization: str = "vit"  # of nn.initialization.INITIALIZATIONS: how parameters start
    head_bias: float = 0.0
    dtype: str = "float32"
    softmax_dtype: str = "float32"
    residual_dtype: str | None = None  # of the tokens that blocks add to; None: as computed
    gradient_dtype: str | None = None  # of kernels' gradients over devices; None: as computed
    scan: bool = False
    remat: str = "none"

    @property
    def precision(self) -> Precision:
        """In what the blocks compute."""
        gradient = self.gradient_dtype and jnp.dtype(self.gradient_dtype)
        return Precision(jnp.dtype(self.dtype), jnp.dtype(self.softmax_dtype), gradient)

    @property
    def stream_dtype(self) -> str:
        """Of the tokens between the blocks."""
        return self.residual_dtype or self.dtype

    @property
    def start(self) -> Initialization:
        """How parameters start."""
        return INITIALIZATIONS[self.initialization](self.width)

    @property
    def has_class_token(self) -> bool:
        """Whether there is one."""
        return self.pool in ("cls", "cls_avg")

    @property
    def features(self) -> int:
        """How wide is what the head sees."""
        return self.width * (2 if self.pool == "cls_avg" else 1)

    @property
    def position_place(self) -> str:
        """Where the position embedding acts, of PLACES."""
        return self.position_at or PLACES[self.position_embedding][0]


def check(done: ViTSpec) -> None:
    """UserError if it cannot be built."""
    checks.check_at_least_1(done, ("patch_size", "depth", "width", "mlp_dim", "num_heads"))
    checks.check_choices(done, CHOICES)
    if done.width % done.num_heads:
        raise errors.UserError(
            f"model.width={done.width} does not divide into model.num_heads={done.num_heads}; "
            f"nearest width: {_nearest_multiple(done.width, done.num_heads)}."
        )
    if done.registers < 0:
        raise errors.UserError(f"model.registers={done.registers}: give at least 0.")
    if done.pre_logits and done.pool == "cls_avg":
        raise errors.UserError(
            "model.pre_logits does not go with model.pool=cls_avg: leave it out, or take pool=cls."
        )
    _check_positions(done)
    if not 0 < done.norm_epsilon < 1:
        raise errors.UserError(
            f"model.norm_epsilon={done.norm_epsilon}: a small positive number, such as 1e-6."
        )
    if not 0 <= done.dropout < 1 or not 0 <= done.stochastic_depth < 1:
        raise errors.UserError(
            "model.dropout and model.stochastic_depth are rates in [0, 1), got "
            f"{done.dropout} and {done.stochastic_depth}."
        )


def _check_positions(done: ViTSpec) -> None:
    kind = done.position_embedding
    if done.position_at is not None and done.position_at not in PLACES[kind]:
        raise errors.UserError(
            f"model.position_at={done.position_at} does not go with "
            f"model.position_embedding={kind}, which may be at: {', '.join(PLACES[kind])}."
        )
    parts = POSITION_PARTS.get(kind, 1)
    if done.width % parts:
        nearest = _nearest_multiple(done.width, math.lcm(parts, done.num_heads))
        raise errors.UserError(
            f"model.width={done.width} does not divide into the {parts} parts of "
            f"model.position_embedding={kind}; nearest width: {nearest}."
        )
    if kind == "rotary_2d" and done.width % (done.num_heads * rotary.PARTS):
        nearest = _nearest_multiple(done.width, done.num_heads * rotary.PARTS)
        raise errors.UserError(
            f"model.width={done.width} gives each of {done.num_heads} heads "
            f"{done.width // done.num_heads}, which does not divide into the {rotary.PARTS} parts "
            f"of model.position_embedding={kind}; nearest width: {nearest}."
        )


def _nearest_multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of


def token_layout(spec: ViTSpec, image_size: tuple[int, int]) -> TokenLayout:
    """Of images of this size in pixels. UserError if the patches do not tile them."""
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
