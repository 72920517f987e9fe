"""transformers' ViTForImageClassification in PyTorch; with COMPILE by torch.compile.

Computed differently from `own`: under autocast norms give float32, and so is what blocks add to
(`own`: the dtype of the computation); all tokens go through the last block; an update that is not
finite is applied. Alike: attention is PyTorch's scaled dot product, whose fused kernels have a
softmax in float32; norms have float32 statistics and epsilon 1e-6 (its default is 1e-12); no
dropout.
"""

from collections.abc import Sequence

import torch
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.contenders import COMPILE, Contender, Shape, torch_common


def make(shape: Shape, dtype: str, settings: Sequence[str] = ()) -> Contender:
    """Builds the contender; bfloat16 means torch's autocast, with float32 parameters."""
    torch_common.set_up(dtype)
    model = network(shape).to(torch_common.device()).train()
    logits = lambda images: model(pixel_values=images).logits
    return torch_common.training(
        model, logits, shape, dtype, torch.contiguous_format, compiled=COMPILE in settings
    )


def network(shape: Shape) -> ViTForImageClassification:
    """The network, with the epsilon and the activation of all contenders."""
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.mlp_dim,
            image_size=shape.image_px,
            patch_size=shape.patch_px,
            num_labels=shape.classes,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )
