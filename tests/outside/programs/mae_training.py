"""Epochs of MAE's training by its authors' own loop: losses, and the weights before and after."""

import functools
import json
import sys
from types import SimpleNamespace

import absent  # noqa: F401, before timm
import numpy as np
import timm.models.vision_transformer as of_timm
import torch
from timm.optim import param_groups_weight_decay

np.float = float  # as NumPy 1 had it
sys.modules["torch._six"] = SimpleNamespace(inf=torch.inf)
torch.cuda.synchronize = lambda: None


class Block(of_timm.Block):
    """timm's, which has lost an argument that the authors give as None."""

    def __init__(self, *args, qk_scale=None, **kwargs):
        super().__init__(*args, **kwargs)


of_timm.Block = Block
from engine_pretrain import train_one_epoch  # noqa: E402
from models_mae import MaskedAutoencoderViT  # noqa: E402
from util.misc import NativeScalerWithGradNormCount  # noqa: E402

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
model = MaskedAutoencoderViT(**about["model"], norm_layer=norm, norm_pix_loss=True)
torch.manual_seed(0)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "pos_embed" not in name:
            parameter.add_(0.05 * torch.randn_like(parameter))
copied = lambda kind: {
    f"{kind}/{n}": p.detach().numpy().copy() for n, p in model.named_parameters()
}
outputs = copied("start")
# The authors decay the class token and the mask's, this project does not.
groups = param_groups_weight_decay(
    model, about["weight_decay"], no_weight_decay_list=about["undecayed"]
)
optimizer = torch.optim.AdamW(groups, lr=about["args"]["lr"], betas=(0.9, 0.95))
noise = iter(torch.tensor(inputs["noise"]))
torch.rand = lambda *shape, device=None: next(noise)
scale, losses = NativeScalerWithGradNormCount(), []


def scaler(loss, *args, **kwargs):
    losses.append(loss.item())
    return scale(loss, *args, **kwargs)


images = (torch.tensor(inputs["images"]).permute(0, 1, 4, 2, 3) / 255.0 - 0.5) / 0.5
epochs = about["args"]["epochs"]
for epoch, batches in enumerate(images.chunk(epochs)):
    loader = [(batch, None) for batch in batches]
    args = SimpleNamespace(accum_iter=1, min_lr=0.0, **about["args"])
    train_one_epoch(model, loader, optimizer, torch.device("cpu"), epoch, scaler, args=args)
np.savez(sys.argv[2], losses=losses, **outputs, **copied("end"))
