"""The table of models by name, and what can be known of one without building it."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from flax import nnx

from vit_jax.core import errors, pytrees
from vit_jax.models import vit
from vit_jax.models.preprocess import Preprocess
from vit_jax.nn.posemb import TokenLayout

_VIT = re.compile(r"ViT-([A-Za-z0-9]+)/(\d+)")


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Figures of one model.

    Attributes:
      parameters: number of scalars.
      forward_flops: FLOPs of the matrix products of one image's forward pass (multiply-add = 2).
      activation_bytes: of one image in bfloat16, what the blocks' backward pass finds in memory
        where nothing is computed again; without the padding that devices add.
      stride: pixels from one token to the next.
      spec: its fields.
      tokens: where its tokens come from.
    """

    name: str
    parameters: int
    forward_flops: int
    activation_bytes: int
    stride: int
    spec: dict[str, Any]
    tokens: TokenLayout


def available() -> tuple[str, ...]:
    """Published names; any other patch size, such as "ViT-Ti/4", is valid too."""
    return tuple(f"ViT-{name}" for name in vit.PUBLISHED)


def spec(name: str, **fields: Any) -> vit.ViTSpec:
    """The fields behind a name, with some overridden. UserError for unknown names and fields."""
    match = _VIT.fullmatch(name)
    if not match or match[1] not in vit.SIZES or int(match[2]) == 0:
        raise errors.UserError(
            f"Unknown model {name!r}: ViT-<{'|'.join(vit.SIZES)}>/<patch size in pixels>. "
            f"{errors.nearest(name, available())}"
        )
    known = [f.name for f in dataclasses.fields(vit.ViTSpec)]
    for field in fields:
        if field not in known:
            raise errors.UserError(f"A ViT has no field {field!r}. {errors.nearest(field, known)}")
    return vit.spec(match[1], int(match[2]), **fields)


def create(
    name: str,
    *,
    num_classes: int,
    image_size: int | tuple[int, int],
    rngs: nnx.Rngs,
    preprocess: Preprocess | None = None,
    **fields: Any,
) -> vit.ViT:
    """A model with random parameters, in evaluation mode.

    Args:
      name: such as "ViT-B/16"; see `available`.
      num_classes: C, of the head.
      image_size: pixels, one number for squares or (height, width).
      rngs: nnx.Rngs; the stream "params" (or the default one) seeds the initialisation.
      preprocess: default: images resized to `image_size`, [0, 1] mapped to [-1, 1].
      **fields: fields of the model to override, such as depth=4.

    Raises:
      UserError: unknown name or field; patches that do not tile the image.
    """
    size = _pair(image_size)
    preprocess = preprocess or Preprocess(image_size=size, resize=size)
    return vit.ViT(
        spec(name, **fields),
        num_classes=num_classes,
        image_size=size,
        preprocess=preprocess,
        rngs=rngs,
    )


def info(
    name: str, *, num_classes: int = 1000, image_size: int | tuple[int, int] = 224, **fields: Any
) -> ModelInfo:
    """What is known of a model without allocating it."""
    size = _pair(image_size)
    make = lambda: create(
        name, num_classes=num_classes, image_size=size, rngs=nnx.Rngs(0), **fields
    )
    params = nnx.state(nnx.eval_shape(make), nnx.Param)
    own = spec(name, **fields)
    return ModelInfo(
        name=name,
        parameters=pytrees.num_elements(params),
        forward_flops=vit.forward_flops(own, num_classes=num_classes, image_size=size),
        activation_bytes=vit.activation_bytes(own, image_size=size),
        stride=own.patch_size,
        spec=dataclasses.asdict(own),
        tokens=vit.token_layout(own, size),
    )


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width
