"""A training of the plain ViT of arXiv 2112.13492 by its authors' model, loss and schedule."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import torch
from models.vit import ViT
from utils.losses import LabelSmoothingCrossEntropy
from utils.scheduler import build_scheduler

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
torch.manual_seed(0)
model = ViT(**about["model"])
outputs = {f"start/{n}": p.detach().numpy().copy() for n, p in model.named_parameters()}
args = SimpleNamespace(**about["args"])
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=about["weight_decay"])
mean, std = (torch.tensor(about[name]) for name in ("mean", "std"))
images = ((torch.tensor(inputs["images"]) / 255.0 - mean) / std).permute(0, 1, 4, 2, 3)
scheduler = build_scheduler(args, optimizer, len(images) // args.epochs)
criterion, losses = LabelSmoothingCrossEntropy(), []
for image, label in zip(images, torch.tensor(inputs["labels"]).long(), strict=True):
    loss = criterion(model(image), label)
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
outputs |= {f"end/{n}": p.detach().numpy() for n, p in model.named_parameters()}
np.savez(sys.argv[2], **outputs, losses=losses)
