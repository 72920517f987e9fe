"""What the table of names has to know of a family of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from vit_jax.nn.posemb import TokenLayout


@dataclasses.dataclass(frozen=True)
class Family:
    """One file of models.

    Attributes:
      kind: for messages, such as "A ViT".
      form: of its names, for messages.
      published: names.
      architecture: fields that say what weights were trained as; the others say how to train or
        compute them further.
      spec: dataclass of its fields.
      named: the fields that a name stands for; None for a name of another form.
      check: raises UserError for fields that cannot be built.
      create: (spec, num_classes=, image_size=, preprocess=, rngs=) -> module.
      token_layout: of (spec, image_size). UserError for images of a size that does not fit.
      stride: pixels from one token to the next.
      forward_flops, activation_bytes, block_input_bytes: as of ModelInfo.
    """

    kind: str
    form: str
    published: tuple[str, ...]
    architecture: tuple[str, ...]
    spec: type
    named: Callable[[str], dict[str, Any] | None]
    check: Callable[[Any], None]
    create: Callable[..., Any]
    token_layout: Callable[[Any, tuple[int, int]], TokenLayout]
    stride: Callable[[Any], int]
    forward_flops: Callable[..., int]
    activation_bytes: Callable[..., int]
    block_input_bytes: Callable[..., int]
