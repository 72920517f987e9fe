"""MAE's loss by its authors' code, with random weights and given noise: losses and the weights."""

import functools
import sys

import absent  # noqa: F401, before timm
import numpy as np
import timm.models.vision_transformer as of_timm
import torch

np.float = float  # as NumPy 1 had it


class Block(of_timm.Block):
    """timm's, which has lost an argument that the authors give as None."""

    def __init__(self, *args, qk_scale=None, **kwargs):
        super().__init__(*args, **kwargs)


of_timm.Block = Block
from models_mae import MaskedAutoencoderViT  # noqa: E402

inputs = dict(np.load(sys.argv[1]))
fields = {k: int(inputs[k]) for k in ("img_size", "patch_size", "embed_dim", "depth", "num_heads")}
decoder = {k: int(inputs[k]) for k in inputs if k.startswith("decoder_")}
norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
model = MaskedAutoencoderViT(**fields, **decoder, mlp_ratio=4, norm_layer=norm)
torch.manual_seed(0)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "pos_embed" not in name:
            parameter.copy_(0.2 * torch.randn_like(parameter))
torch.rand = lambda *shape, device=None: torch.tensor(inputs["noise"])
images = torch.tensor(inputs["images"]).permute(0, 3, 1, 2)
outputs = {name: x.detach().numpy() for name, x in model.named_parameters()}
for normalized in (False, True):
    model.norm_pix_loss = normalized
    with torch.no_grad():
        outputs[f"loss_{normalized}"] = model(images, float(inputs["masked"]))[0].numpy()
np.savez(sys.argv[2], **outputs)
