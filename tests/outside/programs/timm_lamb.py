"""timm's LAMB: arrays after each of several updates; only kernels decay."""

import sys

import absent  # noqa: F401, before timm
import numpy as np
import torch
from timm.optim.lamb import Lamb

inputs = np.load(sys.argv[1])
names = [n.removeprefix("params:") for n in inputs.files if n.startswith("params:")]
params = {n: torch.nn.Parameter(torch.tensor(inputs[f"params:{n}"])) for n in names}
kernels = [n for n in names if n.endswith("kernel")]
others = [n for n in names if n not in kernels]
groups = [
    {"params": [params[n] for n in kernels], "weight_decay": float(inputs["weight_decay"])},
    {"params": [params[n] for n in others], "weight_decay": 0.0},
]
optimizer = Lamb(groups, eps=float(inputs["eps"]))
outputs = {}
for step, lr in enumerate(inputs["lrs"].tolist()):
    for group in optimizer.param_groups:
        group["lr"] = lr
    for n in names:
        params[n].grad = torch.tensor(inputs[f"gradients{step}:{n}"])
    optimizer.step()
    outputs |= {f"{step}:{n}": params[n].detach().numpy().copy() for n in names}
np.savez(sys.argv[2], **outputs)
