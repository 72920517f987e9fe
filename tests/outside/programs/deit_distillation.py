"""Distillation by DeiT's authors' loop and loss, an epoch a step: losses, and the weights after."""

import functools
import json
import sys
from types import SimpleNamespace

import absent  # noqa: F401, before timm
import numpy as np
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import NativeScaler

torch.cuda.synchronize = lambda: None
import losses as of_losses  # noqa: E402
from engine import train_one_epoch  # noqa: E402

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)


def filled(which, kind, **fields):
    model = kind(**about["model"], **fields, norm_layer=norm)
    arrays = {n.removeprefix(which): torch.tensor(x) for n, x in inputs.items() if which in n}
    model.load_state_dict(arrays)
    return model


model = filled("student/", VisionTransformerDistilled)
model.set_distilled_training(True)
teacher = filled("teacher/", VisionTransformer).eval()
# Theirs is divided by the number of classes too, this project's is not.
divergence = of_losses.F.kl_div
classes = about["model"]["num_classes"]
of_losses.F.kl_div = lambda *args, **kwargs: divergence(*args, **kwargs) * classes
criterion = of_losses.DistillationLoss(
    LabelSmoothingCrossEntropy(about["smoothing"]), teacher, about["kind"], about["alpha"],
    about["temperature"],
)  # fmt: skip
optimizer = create_optimizer_v2(
    model, opt="adamw", lr=about["lr"], weight_decay=about["weight_decay"]
)
steps = len(inputs["images"])
scheduler = CosineLRScheduler(
    optimizer, t_initial=steps - about["warmup"], warmup_t=about["warmup"], warmup_prefix=True
)
scale, losses = NativeScaler(), []


def scaler(loss, *args, **kwargs):
    losses.append(loss.item())
    return scale(loss, *args, **kwargs)


for step, (images, labels) in enumerate(zip(inputs["images"], inputs["labels"], strict=True)):
    scheduler.step(step)
    x = (torch.tensor(images).permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5
    train_one_epoch(
        model, criterion, [(x, torch.tensor(labels).long())], optimizer, torch.device("cpu"), step,
        scaler, max_norm=about["clip"], args=SimpleNamespace(cosub=False, bce_loss=False),
    )  # fmt: skip
np.savez(sys.argv[2], losses=losses, **{n: x.numpy() for n, x in model.state_dict().items()})
