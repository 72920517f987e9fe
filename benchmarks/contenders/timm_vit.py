"""timm's VisionTransformer in PyTorch; on a GPU by torch.compile, as its own scripts offer.

As `train.py --amp --amp-dtype bfloat16 --torchcompile --channels-last --fast-norm` of
pytorch-image-models, with a fused AdamW: PyTorch's scaled dot product attention, and norms that
under autocast give bfloat16 rather than float32.
"""

import functools

import torch
from timm.layers import LayerNorm, set_fast_norm, set_fused_attn
from timm.models.vision_transformer import VisionTransformer

from benchmarks.contenders import Contender, Shape, torch_common


def make(shape: Shape, dtype: str) -> Contender:
    """Builds the contender; bfloat16 means torch's autocast, with float32 parameters."""
    torch_common.set_up(dtype)
    model = network(shape).to(torch_common.device(), memory_format=torch.channels_last).train()
    return torch_common.training(model, model, shape, dtype, torch.channels_last)


def make_forward(shape: Shape, dtype: str) -> Contender:
    """Builds the forward pass of a model whose parameters are in `dtype`."""
    torch_common.set_up(dtype)
    model = network(shape).to(
        torch_common.device(), getattr(torch, dtype), memory_format=torch.channels_last
    )
    return torch_common.forward(model.eval(), shape, dtype, torch.channels_last)


def network(shape: Shape) -> VisionTransformer:
    """The network, with the epsilon and the activation of all contenders."""
    set_fast_norm(True)
    set_fused_attn(True)
    return VisionTransformer(
        img_size=shape.image_px,
        patch_size=shape.patch_px,
        num_classes=shape.classes,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.num_heads,
        mlp_ratio=shape.mlp_dim / shape.width,
        norm_layer=functools.partial(LayerNorm, eps=1e-6),
        act_layer="gelu_tanh",
    )
