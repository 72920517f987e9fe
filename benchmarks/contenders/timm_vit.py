"""timm's VisionTransformer in PyTorch; with COMPILE by torch.compile, as its own scripts offer.

With it as `train.py --amp --amp-dtype bfloat16 --torchcompile --channels-last --fast-norm` of
pytorch-image-models, and without as the same command without `--torchcompile`, each with a fused
AdamW.

Computed differently from `own`: under autocast what blocks add to is float32 (`own`: the dtype of
the computation); all tokens go through the last block; an update that is not finite is applied.
Alike: attention is PyTorch's scaled dot product, whose fused kernels have a softmax in
float32; norms under autocast give bfloat16 (`--fast-norm`), by float32 statistics, with epsilon
1e-6; no dropout.
"""

import functools
from collections.abc import Sequence

import torch
from timm.layers import LayerNorm, set_fast_norm, set_fused_attn
from timm.models.vision_transformer import VisionTransformer

from benchmarks.contenders import COMPILE, Contender, Shape, torch_common


def make(shape: Shape, dtype: str, settings: Sequence[str] = ()) -> Contender:
    """Builds the contender; bfloat16 means torch's autocast, with float32 parameters."""
    torch_common.set_up(dtype)
    model = network(shape).to(torch_common.device(), memory_format=torch.channels_last).train()
    return torch_common.training(
        model, model, shape, dtype, torch.channels_last, compiled=COMPILE in settings
    )


def make_forward(shape: Shape, dtype: str, settings: Sequence[str] = ()) -> Contender:
    """Builds the forward pass of a model whose parameters are in `dtype`."""
    torch_common.set_up(dtype)
    model = network(shape).to(
        torch_common.device(), getattr(torch, dtype), memory_format=torch.channels_last
    )
    return torch_common.forward(
        model.eval(), shape, dtype, torch.channels_last, compiled=COMPILE in settings
    )


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
