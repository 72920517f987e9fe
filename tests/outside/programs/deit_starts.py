"""Percentiles of each initial parameter of DeiT III's ViT, by name."""

import json
import sys
from functools import partial

import absent  # noqa: F401, before timm
import numpy as np
import torch
from models_v2 import Layer_scale_init_Block, vit_models

inputs = np.load(sys.argv[1])
torch.manual_seed(0)
model = vit_models(
    block_layers=Layer_scale_init_Block,
    norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
    **json.loads(str(inputs["fields"])),
)
outputs = {}
for name, x in model.named_parameters():
    # The blocks are alike, so their parameters are pooled.
    parts = [part for part in name.split(".") if not part.isdigit()]
    outputs.setdefault(".".join(parts), []).append(x.detach().numpy().ravel())
percents = inputs["percents"]
np.savez(sys.argv[2], **{n: np.percentile(np.concatenate(x), percents) for n, x in outputs.items()})
