"""The common parts of all model families: fields, and what the table of names needs of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from vit_jax.core.axes import CLASSES, WIDTH
from vit_jax.core.schema.fields import field
from vit_jax.nn.block_spec import Numerics
from vit_jax.nn.linear import Initializer, Linear
from vit_jax.nn.posemb import TokenLayout
from vit_jax.nn.stack import REMAT_POLICIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec(Numerics):
    """The fields of every model."""

    head_bias: float = field(
        0.0,
        "its initial value [0]; -10 for sigmoid losses over many classes",
        bounds=(-1e4, 1e4),
    )
    scan: bool = field(
        False,
        "the blocks, or the units of a ResNet's stage, by one compiled loop (true) or unrolled "
        "[false]",
    )
    remat: str = field(
        "none",
        "what is computed again on the way back: `none` [this]: no matrix product, and in a scan "
        "the cheap operations between them; `dots`: those operations; `dots_no_batch`: attention's "
        "products too; `full`: a whole block; `offload`: likewise, and the blocks' inputs wait in "
        "the host's memory, where the platform can do that",
        choices=REMAT_POLICIES,
    )


def head(
    spec: ModelSpec,
    features: int,
    num_classes: int,
    *,
    kernel_init: Initializer,
    rngs: nnx.Rngs,
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


@dataclasses.dataclass(frozen=True)
class Family:
    """One file of models.

    Attributes:
      kind: for messages, such as "A ViT".
      form: the form of its names, for messages.
      published: the published names.
      spec: dataclass of its fields.
      named: a name -> its fields; None for a name of another form.
      check: raises UserError for fields that cannot be built.
      create: (spec, num_classes=, image_size=, preprocess=, rngs=) -> module.
      token_layout: (spec, image_size) -> layout. UserError for images of a size that does not fit.
      stride: pixels from one token to the next.
      forward_flops, activation_bytes, block_input_bytes: as in ModelInfo.
    """

    kind: str
    form: str
    published: tuple[str, ...]
    spec: type
    named: Callable[[str], dict[str, Any] | None]
    check: Callable[[Any], None]
    create: Callable[..., Any]
    token_layout: Callable[[Any, tuple[int, int]], TokenLayout]
    stride: Callable[[Any], int]
    forward_flops: Callable[..., int]
    activation_bytes: Callable[..., int]
    block_input_bytes: Callable[..., int]
