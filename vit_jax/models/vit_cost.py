"""What a ViT costs, by its fields alone: FLOPs, and memory of the backward pass."""

from __future__ import annotations

from vit_jax.models.vit_spec import ViTSpec, token_layout


def forward_flops(spec: ViTSpec, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """FLOPs of the matrix products of one image's forward pass; a multiply-add counts 2."""
    rows, columns = token_layout(spec, image_size).grid
    patches = 2 * rows * columns * spec.patch_size**2 * 3 * spec.width
    behind = flops_behind_patches(spec, num_classes=num_classes, image_size=image_size)
    return patches + behind


def flops_behind_patches(spec: ViTSpec, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """As `forward_flops`, from the tokens on."""
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
    """What the backward pass of the blocks finds in memory of one image in bfloat16, unpadded.

    Of each token a block's input, its middle (unless `parallel`), query, key (both before and
    behind a norm of their own), value, what attention mixed, the hidden layer before its GELU (if
    gated, both), and attention's weights. Where the tokens between blocks are float32 and the rest
    is not, the first two count twice.
    """
    n = token_layout(spec, image_size).num_tokens
    of_width = (2 - spec.parallel) * _stream_size(spec) + 4 + 2 * spec.qk_norm
    of_mlp = 1 + (spec.mlp != "mlp")
    of_a_token = of_width * spec.width + of_mlp * spec.mlp_dim + spec.num_heads * n
    return 2 * spec.depth * n * of_a_token


def block_input_bytes(spec: ViTSpec, *, image_size: tuple[int, int]) -> int:
    """Of one image in bfloat16, what enters the blocks: the least that a backward pass keeps."""
    of_a_token = _stream_size(spec) * spec.width
    return 2 * spec.depth * token_layout(spec, image_size).num_tokens * of_a_token


def _stream_size(spec: ViTSpec) -> int:
    """How much larger numbers are in the tokens between blocks than within them."""
    return 1 if spec.stream_dtype == spec.dtype else 2
