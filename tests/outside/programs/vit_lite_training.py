"""Epochs of ViT-Lite's training by its authors' own loop: losses, weights before and after."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import absent  # noqa: F401, before their main
import numpy as np
import src
import torch

sys.path.append(str(Path(src.__file__).parents[1] / "examples"))
import main
from src.vit import ViTLite

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
torch.manual_seed(0)
model = ViTLite(**about["model"], attention_dropout=0.0, stochastic_depth=0.0)
outputs = {f"start/{n}": p.detach().numpy().copy() for n, p in model.named_parameters()}
args = SimpleNamespace(
    **about["args"], no_cuda=True, disable_cos=False, clip_grad_norm=0.0, print_freq=-1
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=about["weight_decay"])
smoothed, losses = main.LabelSmoothingCrossEntropy(), []


def criterion(logits, target):
    losses.append(smoothed(logits, target))
    return losses[-1]


mean, std = (torch.tensor(about[name]) for name in ("mean", "std"))
images = ((torch.tensor(inputs["images"]) / 255.0 - mean) / std).permute(0, 1, 4, 2, 3)
batches = list(zip(images, torch.tensor(inputs["labels"]).long(), strict=True))
updates = len(batches) // args.epochs
for epoch in range(args.epochs):
    main.adjust_learning_rate(optimizer, epoch, args)
    loader = batches[epoch * updates : (epoch + 1) * updates]
    main.cls_train(loader, model, criterion, optimizer, epoch, args)
outputs |= {f"end/{n}": p.detach().numpy() for n, p in model.named_parameters()}
np.savez(sys.argv[2], **outputs, losses=[float(loss) for loss in losses])
